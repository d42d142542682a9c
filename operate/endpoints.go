package operate

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/apply/target"
	"pgapply/internal/source"
)

// Endpoints name a subscription and where its two ends are.
type Endpoints struct {
	// Name of the subscription.
	Name string
	// Source and Target are libpq connection URIs or keyword strings. Source may
	// be empty where the publisher is not to be asked.
	Source, Target string
	// SourcePassfile and TargetPassfile name a password file for one end; empty
	// means the usual one.
	SourcePassfile, TargetPassfile string
}

// closeGrace bounds the farewell to a server, also after the context has ended.
const closeGrace = 2 * time.Second

// targetSession is an open control session with what it is connected to.
type targetSession struct {
	conn   *pgx.Conn
	server state.Target
}

func (e Endpoints) openTarget(ctx context.Context) (*targetSession, error) {
	conn, err := state.ConnectControl(ctx, e.Target, e.TargetPassfile, e.Name)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	server, err := state.ReadTarget(ctx, conn)
	if err != nil {
		closeTarget(conn)
		return nil, apply.TargetError(err)
	}
	return &targetSession{conn: conn, server: server}, nil
}

// openState is openTarget with the state of the subscription, which may still be
// one that the state does not know.
func (e Endpoints) openState(ctx context.Context) (*targetSession, *state.Store, error) {
	target, err := e.openTarget(ctx)
	if err != nil {
		return nil, nil, err
	}
	store, err := state.OpenExisting(ctx, target.conn, e.Name)
	if err == nil {
		return target, store, nil
	}
	closeTarget(target.conn)
	if errors.Is(err, state.ErrNoSchema) {
		return nil, nil, refused(unknownHint, "database %q on the target knows no subscription %q: %w", target.server.Database, e.Name, state.ErrNoSchema)
	}
	return nil, nil, apply.TargetError(err)
}

const unknownHint = "start it with `pgapply run`, or check --name and --target"

// unknown says that the state has other subscriptions than this one.
func (t *targetSession) unknown(ctx context.Context, store *state.Store) error {
	names, err := store.Names(ctx)
	if err != nil {
		return apply.TargetError(err)
	}
	return refused(unknownHint, "database %q on the target knows no subscription %q%s", t.server.Database, store.Name(), after(", only ", quoted(names)))
}

// preparedPrefix begins the names of a subscription's prepared transactions.
func (t *targetSession) preparedPrefix(subscription string) string {
	return target.PreparedPrefix(subscription, t.server.DatabaseOID)
}

// writable refuses a standby, for what writes.
func (t *targetSession) writable() error {
	if t.server.InRecovery {
		return refused("connect to its primary", "the target is a standby and cannot be written to")
	}
	return nil
}

// closeTarget says farewell. When that fails nothing is lost: the server has
// answered every statement.
func closeTarget(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	_ = conn.Close(ctx)
}

// openSource returns the publisher's connection and identity.
func (e Endpoints) openSource(ctx context.Context) (*source.Conn, source.Identity, error) {
	return e.openSourceIn(ctx, "")
}

// openSourceIn is openSource for names in the given encoding.
func (e Endpoints) openSourceIn(ctx context.Context, encoding string) (*source.Conn, source.Identity, error) {
	conn, err := source.Connect(ctx, source.Options{
		URI: e.Source, Passfile: e.SourcePassfile, ApplicationName: "pgapply:" + e.Name + ":control", ClientEncoding: encoding,
	})
	if err != nil {
		return nil, source.Identity{}, apply.SourceError(err)
	}
	identity, err := conn.Identify(ctx)
	if err != nil {
		closeSource(conn)
		return nil, source.Identity{}, apply.SourceError(err)
	}
	return conn, identity, nil
}

// closeSource is closeTarget for the publisher.
func closeSource(conn *source.Conn) { _ = conn.Close() }
