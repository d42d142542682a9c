package source

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"pgapply/internal/conninfo"
	"pgapply/internal/lsn"
)

// Stream is a running stream of changes. Receive, Stop and Settings belong to
// one goroutine, the reader; Report, Interrupt and Close may be called from any.
// Every stream must be closed, by Stop or Close.
type Stream struct {
	conn     *Conn
	net      net.Conn // with TLS where that is in use
	socket   socket   // below TLS
	frontend *pgproto3.Frontend
	settings Settings
	feedback *feedback
	horizon  horizon

	interrupted atomic.Bool
	// listening ends with the stream, and when it is interrupted.
	listening context.Context //nolint:containedctx // Receive takes none
	deafen    context.CancelFunc
	err       error // what ended the stream, for the reader

	mu    sync.Mutex
	cause error // why we closed the socket ourselves
}

func newStream(conn *Conn, start lsn.LSN, settings Settings) (*Stream, error) {
	s := &Stream{conn: conn, net: conn.pg.Conn(), frontend: conn.pg.Frontend(), settings: settings}
	below := s.net
	if secured, ok := below.(*tls.Conn); ok {
		below = secured.NetConn()
	}
	var ok bool
	if s.socket, ok = below.(socket); !ok {
		return nil, errors.Join(fmt.Errorf("start the stream: unexpected connection %T", below), conn.Close())
	}
	s.listening, s.deafen = context.WithCancel(context.Background())
	s.horizon = horizon{known: max(start, conn.reaches), ask: func(ctx context.Context) (lsn.LSN, error) {
		return logEnd(ctx, conn.config, s.net.RemoteAddr())
	}}
	s.feedback = &feedback{
		conn: s.net, interval: settings.StatusInterval, timeout: settings.ReceiveTimeout,
		silent: s.socket.silent, arrival: s.socket.arrival, fail: s.end,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	s.feedback.written.Store(uint64(start))
	go s.feedback.run()
	return s, nil
}

// Settings returns what was chosen for the publisher's major.
func (s *Stream) Settings() Settings { return s.settings }

// publicationSkipped is the code of the one warning by which a publisher from 18 on
// says that it goes on without a publication that did not exist at the moment of a
// change (pgoutput.c, LoadPublications). It would leave out what that publication has
// now, and earlier majors stop there.
const publicationSkipped = "55000"

// Receive waits for the next frame. It takes neither context nor deadline,
// which would also hit the feedback that is written meanwhile: Interrupt and
// Close end it. An error is final, except ErrInterrupted, after which Stop can
// still end the stream in order.
func (s *Stream) Receive() (Frame, error) {
	for {
		if s.err != nil {
			return Frame{}, s.err
		}
		if s.interrupted.Load() {
			return Frame{}, ErrInterrupted
		}
		// Not through pgconn: on an error that writes to the connection from
		// another goroutine, beside our feedback.
		message, err := s.frontend.Receive()
		switch message := message.(type) {
		case nil:
			if s.interrupted.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
				return Frame{}, ErrInterrupted
			}
			s.err = s.readError(err)
		case *pgproto3.CopyData:
			frame, err := parseFrame(message.Data)
			if err == nil {
				err = s.horizon.sees(s.listening, frame.names())
			}
			switch {
			case err == nil:
				s.feedback.received(frame)
				return frame, nil
			case s.interrupted.Load():
				return Frame{}, ErrInterrupted // the frame comes again
			}
			s.err = err
		case *pgproto3.CommandComplete, *pgproto3.CopyDone:
			// A shutdown ends the stream without CopyDone (walsender.c, WalSndDone).
			s.err = ErrPublisherStopped
		case *pgproto3.ErrorResponse:
			s.err = streamError(pgconn.ErrorResponseToPgError(message))
		case *pgproto3.NoticeResponse:
			notice := pgconn.Notice(*pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(message)))
			if notice.Severity != "" && notice.Code == publicationSkipped {
				refusal := pgconn.PgError(notice)
				s.err = &PublicationMissingError{Err: &refusal}
				break
			}
			s.conn.logNotice(&notice)
		case *pgproto3.ParameterStatus, *pgproto3.NotificationResponse:
		default:
			s.err = &FrameError{Reason: fmt.Sprintf("unexpected message %T", message)}
		}
	}
}

func (s *Stream) readError(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return s.cause
	}
	if !isNetwork(err) && !conninfo.IsTLS(err) {
		return &FrameError{Reason: "a message cannot be read", Err: err}
	}
	return fmt.Errorf("receive from the publisher: %w", err)
}

// streamError gives an error of a running stream its type. The slot is held, so
// it cannot be the slot that does not exist.
func streamError(server *pgconn.PgError) error {
	if server.Code == "42704" {
		return &PublicationMissingError{Err: server}
	}
	return fmt.Errorf("receive from the publisher: %w", server)
}

// Report hands over the newest position; the feedback goroutine sends it, at
// once when urgent. Until the first Report the publisher hears only what was
// received, which releases nothing. It never blocks.
func (s *Stream) Report(position Position, urgent bool) { s.feedback.report(position, urgent) }

// Ask has the publisher send a keepalive with its position. It never blocks.
func (s *Stream) Ask() {
	s.feedback.question.Store(true)
	s.feedback.due()
}

// Interrupt ends a Receive that waits, and every later one, with ErrInterrupted.
func (s *Stream) Interrupt() {
	s.interrupted.Store(true)
	s.deafen()
	// On the socket itself and for reads alone: feedback goes on. The error of
	// a closed socket does not matter, Receive sees that too.
	_ = s.socket.SetReadDeadline(time.Unix(1, 0))
}

// Stop ends the stream in order: it sends the newest position, says that we are
// done, and reads to the end, which on a publisher that decodes a large
// transaction may come late. When ctx ends first, the connection is closed
// without. It must not be called beside Receive: interrupt that first. The
// stream is closed in any case.
func (s *Stream) Stop(ctx context.Context) error {
	defer func() { _ = s.Close() }()
	defer context.AfterFunc(ctx, func() { s.end(context.Cause(ctx)) })()
	s.feedback.halt()
	if s.err != nil {
		return nil // it has ended already, and the reader knows why
	}
	if err := s.finish(); err != nil {
		return fmt.Errorf("stop the stream: %w", err)
	}
	return nil
}

func (s *Stream) finish() error {
	if err := s.socket.SetReadDeadline(time.Time{}); err != nil {
		return s.readError(err)
	}
	if err := s.feedback.send(false); err != nil {
		return s.readError(err)
	}
	done, err := (&pgproto3.CopyDone{}).Encode(nil)
	if err == nil {
		err = s.feedback.write(done)
	}
	if err != nil {
		return s.readError(err)
	}
	for ended := false; ; {
		message, err := s.frontend.Receive()
		switch message := message.(type) {
		case nil:
			if ended {
				return nil // the publisher shut down at the same moment
			}
			return s.readError(err)
		case *pgproto3.CommandComplete:
			ended = true
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(message)
		case *pgproto3.ReadyForQuery:
			farewell, err := (&pgproto3.Terminate{}).Encode(nil)
			if err == nil {
				err = s.feedback.write(farewell)
			}
			if err != nil {
				return s.readError(err)
			}
			return nil
		}
	}
}

// end closes the socket for a reason that Receive will return. Only the first counts.
func (s *Stream) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil {
		s.cause = cause
	}
	s.deafen()
	s.conn.dialer.close()
}

// Close closes the connection at once and waits for the feedback goroutine.
// The publisher learns nothing that it was not told before.
func (s *Stream) Close() error {
	s.end(ErrClosed)
	s.feedback.halt()
	return nil
}
