package source

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/internal/lsn"
)

// A position in the publisher's log that a frame names is acknowledged sooner or later, and
// the publisher then forgets what lies before it. A frame that names a point beyond the end
// of the log would have it forget what it has not written yet. So frames are believed only
// up to where the log is known to reach: when the session identified the publisher, and
// wherever a frame was before. A jump of more than stride beyond that is believed once the
// publisher has confirmed it on another session. That is a question for each stride of log
// that has nothing for us.
const stride lsn.LSN = 1 << 30

// askTime bounds that question.
const askTime = 30 * time.Second

// horizon is how far the publisher's log is known to reach. It belongs to the reader.
type horizon struct {
	known lsn.LSN
	// ask has the publisher say how far its log reaches.
	ask func(context.Context) (lsn.LSN, error)
}

// sees decides whether a frame may name a position. The error is a *FrameError when the
// publisher has said that its log ends before it.
func (h *horizon) sees(ctx context.Context, position lsn.LSN) error {
	if position <= h.known {
		return nil
	}
	if position-h.known > stride {
		end, err := h.ask(ctx)
		if err != nil {
			return fmt.Errorf("confirm that the publisher's log reaches %s, which a frame says: %w", position, err)
		}
		if position > end {
			return &FrameError{Reason: fmt.Sprintf("a frame names position %s, and the publisher's log ends at %s", position, end)}
		}
	}
	h.known = position
	return nil
}

// logEnd asks the server that a session is connected to, on a session of its own, how far
// its log reaches.
func logEnd(ctx context.Context, session *pgconn.Config, address net.Addr) (lsn.LSN, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	config := session.Copy()
	delete(config.RuntimeParams, "replication")
	dial := (&net.Dialer{}).DialContext
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dial(ctx, address.Network(), address.String()) // of several hosts, the one that streams
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return 0, connectError("publisher", config, err)
	}
	defer func() {
		_ = conn.Close(ctx) // it has answered
		<-conn.CleanupDone()
	}()
	results, err := conn.Exec(ctx, `SELECT CASE WHEN pg_catalog.pg_is_in_recovery()
		THEN greatest(pg_catalog.pg_last_wal_receive_lsn(), pg_catalog.pg_last_wal_replay_lsn())
		ELSE pg_catalog.pg_current_wal_lsn() END`).ReadAll()
	if err != nil {
		return 0, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return 0, errors.New("it did not answer with one row")
	}
	return lsn.Parse(text(results[0].Rows, 0, 0))
}
