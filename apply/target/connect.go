package target

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/internal/conninfo"
)

// Connection says where the target is and what its session is like.
type Connection struct {
	// URI is a libpq connection URI or keyword string.
	URI string
	// Passfile names a password file, empty for the usual one.
	Passfile string
	// ApplicationName is what the target's pg_stat_activity shows.
	ApplicationName string
	// SynchronousCommit is the session's setting of that name.
	SynchronousCommit string
	// Fires leaves session_replication_role as it is, so that triggers, rules and foreign
	// keys fire as in any other session. Without it the role must be allowed to set it.
	Fires bool
	// Subscription names it, and Fence keeps the session from writing beside a later runner's.
	Subscription string
	Fence        Fence
	// Settings are forced beside those that every writing session has.
	Settings map[string]string
	// Adjust changes what pgconn is given; nil changes nothing.
	Adjust func(*pgconn.Config)
}

// settings are forced at connection start, where they win over what is set for
// the role or the database. They make the session read values as the publisher
// wrote them and keep it free of timeouts and of surprises by search_path; the
// native apply worker has most of them by nature.
func (c *Connection) settings() map[string]string {
	forced := map[string]string{
		"application_name":                    c.ApplicationName,
		"search_path":                         "",
		"datestyle":                           "ISO",
		"intervalstyle":                       "postgres",
		"extra_float_digits":                  "3",
		"array_nulls":                         "on",
		"xmloption":                           "content",
		"lc_monetary":                         "C", // as on the publisher's side
		"standard_conforming_strings":         "on",
		"row_security":                        "off",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": "0",
		"idle_session_timeout":                "0",
		"default_transaction_isolation":       "read committed",
		"default_transaction_read_only":       "off",
		"default_transaction_deferrable":      "off",
		"synchronous_commit":                  c.SynchronousCommit,
		"client_min_messages":                 "warning",
		// A backend of a lost connection must give up the origin soon.
		"tcp_keepalives_idle":     "10",
		"tcp_keepalives_interval": "5",
		"tcp_keepalives_count":    "3",
	}
	maps.Copy(forced, c.Settings)
	return forced
}

// Connect opens a connection whose session is fit to write rows of a publisher. The
// error is a *conninfo.Error or wraps the one of pgconn.
func Connect(ctx context.Context, connection Connection) (*pgconn.PgConn, error) {
	config, err := conninfo.Parse("target", connection.URI, connection.Passfile, connection.settings())
	if err != nil {
		return nil, err
	}
	config.DialFunc = conninfo.KeepAlive(config.DialFunc)
	if connection.Adjust != nil {
		connection.Adjust(&config.Config)
	}
	conn, err := pgconn.ConnectConfig(ctx, &config.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to the target: %w", conninfo.ConnectError(err))
	}
	if err := connection.prepare(ctx, conn); err != nil {
		_ = conn.Close(context.WithoutCancel(ctx)) // the reason is err
		return nil, fmt.Errorf("prepare the session on the target: %w", err)
	}
	return conn, nil
}

// QuietSQL keeps triggers, rules and foreign keys from firing in the session. A role that
// may not set that, as none but superusers before 15, may have it set by ALTER ROLE: then
// nothing is to be set, and a startup packet that asks for it would be refused.
const QuietSQL = `SELECT pg_catalog.set_config('session_replication_role', 'replica', false)
	WHERE pg_catalog.current_setting('session_replication_role') <> 'replica'`

// prepare settles what a startup packet cannot, and enters the fence.
func (c *Connection) prepare(ctx context.Context, conn *pgconn.PgConn) error {
	statements := []string{
		// Values pass through as the publisher converted them, in the encoding of this
		// database. The timeout is not one of every major.
		`SELECT pg_catalog.set_config('client_encoding', pg_catalog.current_setting('server_encoding'), false),
			(SELECT pg_catalog.count(pg_catalog.set_config(name, '0', false)) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout')`,
	}
	if !c.Fires {
		statements = append(statements, QuietSQL)
	}
	statements = append(statements, c.Fence.enter(c.Subscription)...)
	results, err := conn.Exec(ctx, strings.Join(statements, ";\n")).ReadAll()
	if err != nil {
		return err
	}
	if err := c.Fence.entered(c.Subscription, results[len(results)-1].Rows); err != nil {
		return err
	}
	// A backend that waits for a lock notices then that we are gone, and gives up
	// the origin. Servers on platforms that cannot tell refuse it: they do without.
	_, err = conn.Exec(ctx, `SELECT pg_catalog.set_config('client_connection_check_interval', '2s', false)`).ReadAll()
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Severity == "ERROR" {
		return nil
	}
	return err
}

// Fence is an advisory lock that every session which writes for a subscription holds
// shared, from before its first write on, and the epoch that it writes under. Who has
// raised the epoch, and has then had the lock alone, knows that no earlier session
// writes any more. A session that writes nothing has none: the zero Fence.
type Fence struct {
	Class, Object int32
	Epoch         int64
}

// enter takes the fence's lock for the session, and reads the epoch then: each statement of
// a query sees what was committed before it began. A subscription that is about to begin has
// none yet: that is epoch 0.
func (f Fence) enter(subscription string) []string {
	if f == (Fence{}) {
		return nil
	}
	return []string{
		fmt.Sprintf(`SELECT pg_catalog.pg_advisory_lock_shared('%d', '%d')`, f.Class, f.Object),
		`SELECT coalesce((SELECT epoch FROM pgapply.subscription WHERE name = '` + strings.ReplaceAll(subscription, `'`, `''`) + `'), 0)`,
	}
}

// entered proves that the epoch is still ours.
func (f Fence) entered(subscription string, rows [][][]byte) error {
	if f == (Fence{}) {
		return nil
	}
	if epoch := string(rows[0][0]); epoch != strconv.FormatInt(f.Epoch, 10) {
		return &LaterRunnerError{Subscription: subscription, Epoch: f.Epoch, Later: epoch}
	}
	return nil
}

// LaterRunnerError says that another runner of the subscription has begun since.
type LaterRunnerError struct {
	Subscription string
	Epoch        int64
	Later        string
}

func (e *LaterRunnerError) Error() string {
	return fmt.Sprintf("a later runner of subscription %q has begun (epoch %s, ours is %d)", e.Subscription, e.Later, e.Epoch)
}

// Describe renders an error without the values of a row that the target may quote in
// it. It is valid UTF-8.
func Describe(err error) string { return strings.ToValidUTF8(describe(err, true), "?") }
