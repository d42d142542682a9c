package apply

import (
	"context"

	"go.uber.org/zap"

	"pgapply/internal/source"
)

// OpenPrimary opens a session on the server of Options.Primary, and proves that it is
// the primary of the publisher, a standby, and may be told to record what runs on it.
// The error is an *Error.
func OpenPrimary(ctx context.Context, options *Options, publisher source.Identity, log *zap.Logger) (*source.Conn, error) {
	conn, err := source.Connect(ctx, source.Options{
		URI: options.Primary, Passfile: options.PrimaryPassfile,
		ApplicationName: options.Name + ":primary", Server: "primary", Log: log,
	})
	if err != nil {
		return nil, primaryError(err)
	}
	if err := provePrimary(ctx, conn, publisher); err != nil {
		_ = conn.Close() // it is of no further use either way
		return nil, err
	}
	return conn, nil
}

func provePrimary(ctx context.Context, conn *source.Conn, publisher source.Identity) error {
	identity, err := conn.Identify(ctx)
	if err != nil {
		return primaryError(err)
	}
	const hint = "give --primary the address of the server that the publisher follows"
	switch {
	case identity.SystemID != publisher.SystemID:
		return refused(hint, "--primary leads to system %s, and the publisher is a standby of system %s", identity.SystemID, publisher.SystemID)
	case identity.InRecovery:
		return refused(hint, "--primary leads to a standby")
	}
	may, err := conn.MayLogSnapshot(ctx)
	if err != nil {
		return primaryError(err)
	}
	if !may {
		return refused("as an administrator of the primary: GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO the role of --primary, in the database that it names",
			"the role of --primary may not execute pg_log_standby_snapshot()")
	}
	return nil
}

// primaryError classifies what the link to the primary says.
func primaryError(err error) *Error {
	typed := SourceError(err)
	if typed.Hint != "" {
		typed.Hint = "check --primary, the role and database that it names, and that the server runs and lets the role in; or go without --primary, and call pg_log_standby_snapshot() there by hand"
	}
	return typed
}
