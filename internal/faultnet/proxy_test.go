package faultnet

import (
	"context"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startProxy(t *testing.T, b *backend) *Proxy {
	p, err := Listen(b.listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func dial(t *testing.T, p *Proxy, options string) (*pgconn.PgConn, error) {
	conn, err := pgconn.Connect(t.Context(), fmt.Sprintf("postgres://u@%s/d?%s", p.Addr(), options))
	if err == nil {
		t.Cleanup(func() {
			conn.Close(context.Background())
			<-conn.CleanupDone()
		})
	}
	return conn, err
}

func connect(t *testing.T, p *Proxy) *pgconn.PgConn {
	conn, err := dial(t, p, "sslmode=disable")
	require.NoError(t, err)
	return conn
}

// The three ways in which a client sends statements; each returns the first error.
var ways = map[string]func(t *testing.T, conn *pgconn.PgConn, statements ...string) error{
	"simple": func(t *testing.T, conn *pgconn.PgConn, statements ...string) error {
		return conn.Exec(t.Context(), strings.Join(statements, "; ")).Close()
	},
	"extended": func(t *testing.T, conn *pgconn.PgConn, statements ...string) error {
		for _, sql := range statements {
			if _, err := conn.ExecParams(t.Context(), sql, nil, nil, nil, nil).Close(); err != nil {
				return err
			}
		}
		return nil
	},
	"pipeline of prepared statements": func(t *testing.T, conn *pgconn.PgConn, statements ...string) error {
		for _, sql := range statements {
			if _, err := conn.Prepare(t.Context(), "s_"+sql, sql, nil); err != nil {
				return err
			}
		}
		pipeline := conn.StartPipeline(t.Context())
		for _, sql := range statements {
			pipeline.SendQueryPrepared("s_"+sql, nil, nil, nil)
		}
		if err := pipeline.Sync(); err != nil {
			return err
		}
		return pipeline.Close()
	},
}

func eachWay(t *testing.T, test func(t *testing.T, send func(*testing.T, *pgconn.PgConn, ...string) error)) {
	for name, send := range ways {
		t.Run(name, func(t *testing.T) { test(t, send) })
	}
}

func TestForwardsEverything(t *testing.T) {
	eachWay(t, func(t *testing.T, send func(*testing.T, *pgconn.PgConn, ...string) error) {
		b := startBackend(t)
		conn := connect(t, startProxy(t, b))
		require.NoError(t, send(t, conn, "BEGIN", "INSERT", "COMMIT"))
		require.Equal(t, []string{"BEGIN", "INSERT", "COMMIT"}, b.commands())
		require.ErrorContains(t, send(t, conn, "BEGIN", "FAIL", "COMMIT"), "as asked")
	})
}

func TestCutBeforeCommit(t *testing.T) {
	eachWay(t, func(t *testing.T, send func(*testing.T, *pgconn.PgConn, ...string) error) {
		b := startBackend(t)
		p := startProxy(t, b)
		conn := connect(t, p)
		fault := p.CutBeforeCommit(2)
		require.NoError(t, send(t, conn, "BEGIN", "COMMIT"))
		require.Error(t, send(t, conn, "ROLLBACK", "END"))
		<-fault.Fired()
		require.Equal(t, 1, count(b.commands(), "COMMIT"))
	})
}

func TestCutAfterCommit(t *testing.T) {
	eachWay(t, func(t *testing.T, send func(*testing.T, *pgconn.PgConn, ...string) error) {
		b := startBackend(t)
		p := startProxy(t, b)
		conn := connect(t, p)
		fault := p.CutAfterCommit(1)
		require.Error(t, send(t, conn, "BEGIN", "COMMIT"))
		<-fault.Fired()
		require.Eventually(t, func() bool { return count(b.commands(), "COMMIT") == 1 }, time.Minute, time.Millisecond)
	})
}

func TestCutCommitReply(t *testing.T) {
	eachWay(t, func(t *testing.T, send func(*testing.T, *pgconn.PgConn, ...string) error) {
		b := startBackend(t)
		p := startProxy(t, b)
		conn := connect(t, p)
		fault := p.CutCommitReply(1)
		require.Error(t, send(t, conn, "BEGIN", "COMMIT"))
		<-fault.Fired()
		require.Equal(t, 1, count(b.commands(), "COMMIT"))
	})
}

func TestReplyFaultWaitsForACommitThatIsAnswered(t *testing.T) {
	b := startBackend(t)
	p := startProxy(t, b)
	send := ways["pipeline of prepared statements"]
	conn := connect(t, p)
	fault := p.CutCommitReply(1)
	require.ErrorContains(t, send(t, conn, "BEGIN", "FAIL", "COMMIT"), "as asked")
	require.Zero(t, count(b.commands(), "COMMIT"))
	require.Error(t, send(t, connect(t, p), "BEGIN", "COMMIT"))
	<-fault.Fired()
	require.Equal(t, 1, count(b.commands(), "COMMIT"))
}

func TestReplyFaultOutlivesSkippedStatementsAndLostConnections(t *testing.T) {
	b := startBackend(t)
	p := startProxy(t, b)
	fault := p.CutCommitReply(1)

	// The server has answered with an error before the client sends its COMMIT.
	conn := connect(t, p)
	front := conn.Frontend()
	execute := func(sql string) {
		front.SendParse(&pgproto3.Parse{Query: sql})
		front.SendBind(&pgproto3.Bind{})
		front.SendExecute(&pgproto3.Execute{})
	}
	receiveUntil := func(last pgproto3.BackendMessage) {
		for {
			message, err := front.Receive()
			require.NoError(t, err)
			if reflect.TypeOf(message) == reflect.TypeOf(last) {
				return
			}
		}
	}
	execute("FAIL")
	front.Send(&pgproto3.Flush{})
	require.NoError(t, front.Flush())
	receiveUntil(&pgproto3.ErrorResponse{})
	execute("COMMIT")
	front.SendSync(&pgproto3.Sync{})
	require.NoError(t, front.Flush())
	receiveUntil(&pgproto3.ReadyForQuery{})
	require.Zero(t, count(b.commands(), "COMMIT"))

	// The connection is lost while the reply is on its way.
	p.Stall(FromServer)
	front.SendQuery(&pgproto3.Query{String: "COMMIT"})
	require.NoError(t, front.Flush())
	require.Eventually(t, func() bool { return count(b.commands(), "COMMIT") == 1 }, time.Minute, time.Millisecond)
	p.DropAll()
	_, err := front.Receive()
	require.Error(t, err)
	require.Eventually(t, func() bool { return p.Connections() == 0 }, time.Minute, time.Millisecond)
	p.Resume(FromServer)

	require.Error(t, ways["simple"](t, connect(t, p), "COMMIT"))
	<-fault.Fired()
	require.Equal(t, 2, count(b.commands(), "COMMIT"))
}

func TestFaultsCountOverAllConnectionsAndByCommand(t *testing.T) {
	b := startBackend(t)
	p := startProxy(t, b)
	commit, prepare := p.CutBeforeCommit(3), p.Cut(Reply, "PREPARE TRANSACTION", 1)
	first, second := connect(t, p), connect(t, p)
	require.NoError(t, ways["simple"](t, first, "COMMIT", "COMMIT PREPARED 'x'"))
	require.NoError(t, ways["simple"](t, second, "COMMIT"))
	require.Error(t, ways["simple"](t, second, "PREPARE TRANSACTION 'x'"))
	<-prepare.Fired()
	require.Error(t, ways["simple"](t, first, "COMMIT"))
	<-commit.Fired()
	require.Equal(t, 2, count(b.commands(), "COMMIT"))
	require.NoError(t, ways["simple"](t, connect(t, p), "COMMIT"))
}

func TestStallHoldsBackOneDirection(t *testing.T) {
	b := startBackend(t)
	p := startProxy(t, b)
	conn := connect(t, p)

	p.Stall(FromServer)
	conn.Frontend().SendQuery(&pgproto3.Query{String: "COMMIT"})
	require.NoError(t, conn.Frontend().Flush())
	require.Eventually(t, func() bool { return len(b.commands()) == 1 }, time.Minute, time.Millisecond)
	received := make(chan error, 1)
	go func() {
		_, err := conn.ReceiveMessage(t.Context())
		received <- err
	}()
	p.Resume(FromServer)
	require.NoError(t, <-received)
}

func TestStalledProxyCloses(t *testing.T) {
	b := startBackend(t)
	p := startProxy(t, b)
	conn := connect(t, p)
	p.Stall(BothWays)
	conn.Frontend().SendQuery(&pgproto3.Query{String: "COMMIT"})
	require.NoError(t, conn.Frontend().Flush())
	p.Close()
	_, err := conn.ReceiveMessage(t.Context())
	require.Error(t, err)
	require.Empty(t, b.commands())
}

func TestDelayHoldsBackBothWays(t *testing.T) {
	p := startProxy(t, startBackend(t))
	conn := connect(t, p)
	const delay = 20 * time.Millisecond
	p.Delay(delay)
	begun := time.Now()
	require.NoError(t, ways["simple"](t, conn, "SELECT"))
	require.GreaterOrEqual(t, time.Since(begun), 2*delay)
}

func TestDelayCostsLatencyNotThroughput(t *testing.T) {
	const delay = time.Second
	for name, test := range map[string]struct {
		pieces, size int
		takes        time.Duration
	}{
		"many small pieces travel together":      {pieces: 8000, size: 1, takes: delay},
		"large pieces travel together":           {pieces: lineBytes / lineChunk, size: lineChunk, takes: delay},
		"what does not fit waits for its sender": {pieces: 2 * lineBytes / lineChunk, size: lineChunk, takes: 2 * delay},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(func() time.Duration { return delay }, nil)
				from, to := io.Pipe()
				begun := time.Now()
				go l.fill(from)
				go func() {
					for range test.pieces {
						_, _ = to.Write(make([]byte, test.size))
					}
					to.Close()
				}()
				received, err := io.ReadAll(l)
				require.NoError(t, err)
				require.Len(t, received, test.pieces*test.size)
				require.Equal(t, test.takes, time.Since(begun))
			})
		})
	}
}

func TestRefuseAndDropAll(t *testing.T) {
	p := startProxy(t, startBackend(t))
	conn := connect(t, p)
	require.Equal(t, 1, p.Connections())
	p.Refuse()
	_, err := dial(t, p, "sslmode=disable")
	require.Error(t, err)
	require.NoError(t, ways["simple"](t, conn, "SELECT"), "open connections stay")
	p.Accept()
	connect(t, p)
	p.DropAll()
	require.Error(t, ways["simple"](t, conn, "SELECT"))
}

func TestDeclinesEncryption(t *testing.T) {
	p := startProxy(t, startBackend(t))
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	defer conn.Close()
	front := pgproto3.NewFrontend(conn, conn)
	for _, request := range []pgproto3.FrontendMessage{&pgproto3.GSSEncRequest{}, &pgproto3.SSLRequest{}} {
		front.Send(request)
		require.NoError(t, front.Flush())
		answer := make([]byte, 1)
		_, err := conn.Read(answer)
		require.NoError(t, err)
		require.Equal(t, "N", string(answer))
	}
	front.Send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "u"}})
	require.NoError(t, front.Flush())
	message, err := front.Receive()
	require.NoError(t, err)
	require.IsType(t, &pgproto3.AuthenticationOk{}, message)
}

func TestForwardsCancelRequests(t *testing.T) {
	b := startBackend(t)
	conn := connect(t, startProxy(t, b))
	require.NoError(t, conn.CancelRequest(t.Context()))
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Equal(t, 1, b.cancels)
}

func TestListenURIKeepsTheRest(t *testing.T) {
	p, uri, err := ListenURI("postgres://postgres@127.0.0.1:1/db?application_name=x")
	require.NoError(t, err)
	t.Cleanup(p.Close)
	require.Equal(t, "postgres://postgres@"+p.Addr()+"/db?application_name=x", uri)
	_, err = dial(t, p, "sslmode=disable")
	require.Error(t, err, "nothing listens behind it")
	_, _, err = ListenURI("host=localhost")
	require.ErrorContains(t, err, "postgres://")
}

func count(seen []string, command string) int {
	n := 0
	for _, name := range seen {
		if name == command {
			n++
		}
	}
	return n
}
