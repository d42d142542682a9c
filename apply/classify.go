package apply

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply/stream"
	"pgapply/apply/target"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/conninfo"
	"pgapply/internal/source"
	"pgapply/origin"
)

// classify says who has to act on an error of any stage, and whether time helps.
func classify(err error) *Error {
	if typed, ok := errors.AsType[*Error](err); ok {
		return typed
	}
	if failed, ok := errors.AsType[*target.TransactionError](err); ok {
		return &Error{Class: Conflict, Err: err, Hint: failed.Hint, Retryable: passes(failed.Err)}
	}
	if _, ok := errors.AsType[*target.ConnectionError](err); ok {
		return &Error{Class: Target, Err: err, Retryable: true}
	}
	if _, ok := errors.AsType[*target.MessageError](err); ok { // one that belongs to no transaction
		return &Error{Class: Conflict, Err: err, Hint: "mend what the handler of messages complains about"}
	}
	if isStream(err) {
		// The publisher sends it again; if it is the same, somebody must look.
		return &Error{
			Class: Source, Err: err, Retryable: true,
			Hint: "what arrived is not pgoutput as this version knows it; nothing of it was applied",
		}
	}
	return &Error{Class: Other, Err: err, Retryable: true}
}

func isStream(err error) bool {
	_, format := errors.AsType[*decoder.FormatError](err)
	_, protocol := errors.AsType[*txn.ProtocolError](err)
	_, position := errors.AsType[*stream.PositionError](err)
	_, frame := errors.AsType[*source.FrameError](err)
	return format || protocol || position || frame
}

// passes tells the SQLSTATEs that another try alone can cure: serialization and
// deadlock, lock timeout, cancellation, shutdown, and exhausted resources.
func passes(err error) bool {
	if _, unread := errors.AsType[*unreadError](err); unread {
		return true
	}
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	switch refusal.Code {
	case "40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "25006":
		return true
	}
	return strings.HasPrefix(refusal.Code, "53") || strings.HasPrefix(refusal.Code, "08")
}

// SourceError classifies what the publisher's link says.
func SourceError(err error) *Error {
	if fromPooler(err) {
		return &Error{Class: Source, Err: err, Hint: "--source leads to a connection pooler, which knows nothing of replication: connect to the server itself"}
	}
	if _, ok := errors.AsType[*source.PublicationMissingError](err); ok {
		return &Error{
			Class: Source, Err: err,
			Hint: "changes of the time without the publication cannot be had: start without it in --publication, or run `pgapply cleanup`, bring the tables to the publisher's state, and start again",
		}
	}
	switch source.ClassOf(err) {
	case source.Authentication:
		return &Error{Class: Source, Err: err, Hint: loginRemedy(err)}
	case source.Configuration:
		if _, said := errors.AsType[*pgconn.PgError](err); said {
			return &Error{Class: Source, Err: err}
		}
		return &Error{Class: Configuration, Err: err, Hint: "correct --source, or the PG* variables and files that it relies on"}
	case source.SlotLost:
		return &Error{
			Class: SlotLost, Err: err,
			Hint: "run `pgapply cleanup`, bring the tables to the publisher's state, and start again",
		}
	case source.Transient:
		if errors.Is(err, source.ErrPublisherStopped) {
			return &Error{Class: Source, Err: err, Retryable: true}
		}
		if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && (refusal.Code == "40001" || refusal.Code == "40P01") {
			return &Error{
				Class: Source, Err: err, Retryable: true,
				Hint: "the publisher is a standby, whose recovery does not wait for us: hot_standby_feedback = on there, or a larger max_standby_streaming_delay, makes that rare",
			}
		}
		return &Error{
			Class: Source, Err: err, Retryable: true,
			Hint: "check that the publisher runs and that --source names its address",
		}
	}
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if ok && tooLarge(refusal) {
		return &Error{
			Class: Source, Err: err,
			Hint: "the publisher cannot put a row into one message, which ends at 1 GiB, the old row and the new one together: with --binary, bytea takes half of the room that it takes as text; REPLICA IDENTITY DEFAULT leaves the old row out of what is written from then on; else the tables need a new copy",
		}
	}
	if ok && (refusal.Code == "22P05" || refusal.Code == "22021") {
		return &Error{
			Class: Source, Err: err,
			Hint: "the target's database has another encoding than the publisher's, and lacks a character: use a target in UTF8, or change the value on the publisher and move the slot on",
		}
	}
	return &Error{Class: Source, Err: err}
}

// tooLarge tells whether the publisher has no room for what it is about to send (mcxt.c,
// stringinfo.c: enlargeStringInfo), which is for good.
func tooLarge(refusal *pgconn.PgError) bool {
	return refusal.Code == "54000" && strings.HasPrefix(refusal.Detail, "Cannot enlarge string buffer") ||
		refusal.Code == "XX000" && strings.HasPrefix(refusal.Message, "invalid memory alloc request size")
}

// fromPooler tells whether a pooler such as PgBouncer has refused the settings of a session.
func fromPooler(err error) bool {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refusal.Code == "08P01" && strings.Contains(refusal.Message, "startup parameter")
}

// loginRemedy says what helps when the publisher refuses a login.
func loginRemedy(err error) string {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && refusal.Code == "28P01":
		return "check user and password of --source, or the password file"
	case ok && refusal.Code == "42501":
		return "as an administrator of the publisher: ALTER ROLE ... REPLICATION, and GRANT CONNECT ON DATABASE ... TO the role"
	}
	return "check user and password of --source, that the role has LOGIN and REPLICATION, and that the publisher's pg_hba.conf lets it into the database: an entry for replication does not"
}

// TargetError classifies what a connection to the target says outside of a
// transaction.
func TargetError(err error) *Error {
	if typed, ok := errors.AsType[*Error](err); ok {
		return typed
	}
	if malformed, ok := errors.AsType[*conninfo.Error](err); ok {
		return &Error{Class: Configuration, Err: malformed, Hint: "correct --target, or the PG* variables and files that it relies on"}
	}
	if refusal, ok := errors.AsType[interface {
		error
		Hint() string
	}](err); ok { // the state's version, privilege and owner errors
		return &Error{Class: Refused, Err: err, Hint: refusal.Hint()}
	}
	if held, ok := errors.AsType[*origin.HeldError](err); ok {
		return &Error{Class: Target, Err: held, Retryable: true}
	}
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok && conninfo.IsTLS(err):
		return &Error{Class: Configuration, Err: err, Hint: "check sslmode and sslrootcert of --target, and ssl and the certificate of the target"}
	case !ok:
		return &Error{
			Class: Target, Err: err, Retryable: true,
			Hint: "check that the target runs and that --target names its address",
		}
	case fromPooler(err):
		return &Error{Class: Target, Err: err, Hint: "--target leads to a connection pooler: connect to the server itself"}
	case strings.HasPrefix(refusal.Code, "28"):
		return &Error{Class: Target, Err: err, Hint: "check user and password of the target's connection string, and the target's pg_hba.conf"}
	case refusal.Code == "3D000":
		return &Error{Class: Target, Err: err, Hint: "create the database on the target, or name another one"}
	case refusal.Code == "42501":
		return &Error{
			Class: Refused, Err: err, Hint: target.PrivilegeRemedy(refusal),
		}
	case refusal.Code == "53400":
		return &Error{
			Class: Target, Err: err, Retryable: true,
			Hint: "raise max_active_replication_origins (18 and later) or max_replication_slots on the target",
		}
	}
	return &Error{Class: Target, Err: err, Retryable: passes(err)}
}
