"""What can go wrong with the store: one class per condition, each with its remedy."""

from __future__ import annotations


class StoreError(Exception):
    """Any refusal of the store. The message is one line: what is wrong, where, what to do."""

    message = "{detail}"

    def __init__(self, **values: object) -> None:
        super().__init__(self.message.format(**values))
        self.values = values


class OpenError(StoreError):
    """The database cannot be opened or used as a store."""


class UnsupportedTargetError(OpenError):
    message = "{target}: {detail}: give a file path, sqlite:///path or postgresql+psycopg://host/database"


class DriverMissingError(OpenError):
    message = "{name}: the PostgreSQL driver is not installed: pip install 'psycopg[binary]'"


class DirectoryMissingError(OpenError):
    message = "{name}: its directory does not exist: create {parent} first, or give another path"


class PathIsDirectoryError(OpenError):
    message = "{name}: this is a directory: give the path of a file inside it"


class DatabaseMissingError(OpenError):
    message = "{name}: no database is here to read: check the path, or open it for writing once to create it"


class NotReadableError(OpenError):
    message = (
        "{name}: it cannot be read ({detail}): "
        "give this user read access to the file, and write access to its directory for SQLite's -shm file"
    )


class NotWritableError(OpenError):
    message = (
        "{name}: it cannot be written ({detail}): "
        "give this user write access to the database and its directory, or open it read-only"
    )


class NotADatabaseError(OpenError):
    message = "{name}: this is not a SQLite database ({detail}): give another path, or move the file away"


class ForeignDatabaseError(OpenError):
    message = "{name}: this database belongs to another program ({detail}): give another path, schema or database"


class NewerDatabaseError(OpenError):
    message = (
        "{name}: this database was written by a newer pfatune (revision {revision}): "
        "upgrade pfatune, or give another path"
    )


class UpgradeNeededError(OpenError):
    message = "{name}: this database is older than this pfatune: open it for writing once to upgrade it"


class DatabaseLockedError(StoreError):
    message = (
        "{name}: another process has kept it locked for longer than {seconds:g} s: "
        "try again, or stop the process that holds it"
    )


class DatabaseDamagedError(StoreError):
    message = (
        "{name}: the database is damaged ({detail}): restore it from a backup, or recover it with sqlite3 .recover"
    )


class DatabaseFullError(StoreError):
    message = "{name}: no space is left for it ({detail}): free some disk space; nothing of this write was kept"


class DatabaseUnreachableError(StoreError):
    message = (
        "{name}: the server cannot be reached ({detail}): "
        "check that it runs, and the host, port, user and database of the URL"
    )


class DatabaseFailedError(StoreError):
    message = "{name}: the database failed ({detail}): check its disk or server, then try again"


class DatabaseMovedError(DatabaseFailedError):
    message = (
        "{name}: the file was moved, removed or replaced while it was in use, and nothing is kept in what is gone: "
        "put that very file back, or start again"
    )


class ReadOnlyStoreError(StoreError):
    message = "{name}: this store was opened read-only: open it for writing to change it"


class UnknownEnvironmentError(StoreError):
    message = "environment {env_id} is not in the store: get an id from environment_id()"


class UnknownRowError(StoreError):
    message = "{table} {row_id} is not in the store: give the id that the store returned when it was added"


class IdempotencyConflictError(StoreError):
    message = (
        "idempotency key {key!r} belongs to job {job_id}, which was submitted with another body: "
        "send the same body again, or use a new key"
    )


class QueueFullError(StoreError):
    message = "{open_jobs} jobs are open, and {max_open} are allowed: wait until some have ended, or cancel some"


class LeaseLostError(StoreError):
    message = (
        "job {job_id} is no longer leased to {owner} (fence {fence}): stop working on it; nothing of this was kept"
    )


class TokenExistsError(StoreError):
    message = "a token named {token!r} is in use: choose another name, or revoke that one first"


class PromotionError(StoreError):
    """A measurement that must not be served: some part of the evidence is missing or does not match."""


class OtherEnvironmentError(PromotionError):
    message = (
        "{table} {row_id} is of environment {found}, not {env_id}: promote only what was measured in one environment"
    )


class NotMeasuredError(PromotionError):
    message = (
        "measurement {row_id} is of kind {kind}: promote only a measurement of kind ok, against a default of kind ok"
    )


class NotVerifiedError(PromotionError):
    message = "verification {row_id} did not pass: promote only a configuration whose numbers agree with the golden"


class VerificationMismatchError(PromotionError):
    message = (
        "verification {row_id} is of configuration {found} of {found_family}, not {wanted} of {wanted_family}: "
        "verify the configuration that was measured"
    )


class DefaultMismatchError(PromotionError):
    message = "default {row_id} was measured at {found}, not {wanted}: measure the default on the same workload"


class SlowerThanDefaultError(PromotionError):
    message = (
        "measurement {row_id} costs {cost:g} {unit}, more than the default's {default_cost:g} {unit}: "
        "promote the default itself instead"
    )


class PortfolioError(StoreError):
    """A portfolio that must not be served: a member is missing, or is not what one may be."""

    message = "the portfolio of {family} cannot be stored: {detail}"
