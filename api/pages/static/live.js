"use strict";
// The page of a job follows its events: at each, the page is read again and what has changed is put in place.
// Without this script the page reloads itself now and then.
const job = document.querySelector("[data-events]");
if (job) {
  const note = document.getElementById("connection");
  let reading = false;
  let again = false;

  const read = async () => {
    if (reading) {
      again = true;
      return;
    }
    let failed = true;
    reading = true;
    again = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.ok) {
        const now = new DOMParser().parseFromString(await answer.text(), "text/html");
        document.title = now.title;
        for (const old of document.querySelectorAll("[data-live]")) {
          const fresh = now.querySelector(`[data-live="${old.dataset.live}"]`);
          if (fresh && fresh.outerHTML !== old.outerHTML) old.replaceWith(document.adoptNode(fresh));
        }
        failed = false;
      }
    } catch {
      // The service is away: it is asked again.
    }
    reading = false;
    if (failed || again) setTimeout(read, failed ? 3000 : 0);
  };

  const source = new EventSource(job.dataset.events);
  source.addEventListener("open", () => { note.textContent = "live"; });
  source.addEventListener("progress", read);
  source.addEventListener("end", () => {
    source.close();
    note.textContent = "";
    read();
  });
  source.addEventListener("error", () => {
    const closed = source.readyState === EventSource.CLOSED;
    note.textContent = closed ? "not live: reload to see more" : "connecting again…";
  });
}
