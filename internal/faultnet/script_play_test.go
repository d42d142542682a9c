package faultnet

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

func play(t *testing.T, p *Proxy, script string) []*Fault {
	t.Helper()
	faults, err := p.Play(script)
	require.NoError(t, err)
	return faults
}

// walsender is a connection on which the server streams.
func walsender(t *testing.T, p *Proxy) *pgproto3.Frontend {
	conn := connect(t, p)
	front := conn.Frontend()
	front.SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT s LOGICAL 0/0"})
	require.NoError(t, front.Flush())
	message, err := front.Receive()
	require.NoError(t, err)
	require.IsType(t, &pgproto3.CopyBothResponse{}, message)
	return front
}

func tell(front *pgproto3.Frontend, kind byte) error {
	front.Send(&pgproto3.CopyData{Data: []byte{kind, 0}})
	return front.Flush()
}

func TestFaultAtStatusUpdate(t *testing.T) {
	for point, reaches := range map[string]int{"before": 1, "after": 2} {
		t.Run(point, func(t *testing.T) {
			b := startBackend(t)
			p := startProxy(t, b)
			fault := play(t, p, point+" STATUS UPDATE 2: reset")[0]

			// Rows of a COPY that look like one do not count.
			copying := connect(t, p).Frontend()
			require.NoError(t, tell(copying, 'r'))
			require.NoError(t, tell(copying, 'r'))
			require.Eventually(t, func() bool { return count(b.commands(), "STATUS_UPDATE") == 2 }, time.Minute, time.Millisecond)

			front := walsender(t, p)
			require.NoError(t, tell(front, 'r'))
			require.Eventually(t, func() bool { return count(b.commands(), "STATUS_UPDATE") == 3 }, time.Minute, time.Millisecond)
			require.NoError(t, tell(front, 'h'))
			require.NoError(t, tell(front, 'r'))
			<-fault.Fired()
			_, err := drain(front)
			require.Error(t, err)
			require.Eventually(t, func() bool { return p.Connections() == 1 }, time.Minute, time.Millisecond)
			require.Equal(t, 2+reaches, count(b.commands(), "STATUS_UPDATE"))
		})
	}
}

func drain(front *pgproto3.Frontend) (n int, err error) {
	for {
		if _, err := front.Receive(); err != nil {
			return n, err
		}
		n++
	}
}

func TestReset(t *testing.T) {
	for _, script := range []string{"before COMMIT: reset", "after COMMIT: reset", "reply COMMIT: reset", "before COMMIT: reset all"} {
		t.Run(script, func(t *testing.T) {
			p := startProxy(t, startBackend(t))
			conn := connect(t, p)
			fault := play(t, p, script)[0]
			conn.Frontend().SendQuery(&pgproto3.Query{String: "COMMIT"})
			require.NoError(t, conn.Frontend().Flush())
			<-fault.Fired()
			_, err := drain(conn.Frontend())
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
}

func TestMuteSwallowsReplies(t *testing.T) {
	b := startBackend(t)
	p := startProxy(t, b)
	conn := connect(t, p)
	fault := play(t, p, "reply COMMIT 2: mute")[0]
	require.NoError(t, ways["simple"](t, conn, "COMMIT"))
	front := conn.Frontend()
	front.SendQuery(&pgproto3.Query{String: "BEGIN; COMMIT"})
	require.NoError(t, front.Flush())
	<-fault.Fired()
	message, err := front.Receive()
	require.NoError(t, err)
	require.Equal(t, "BEGIN", string(message.(*pgproto3.CommandComplete).CommandTag), "what came before it arrives")

	// The server goes on hearing the client, and the client hears nothing, not even the
	// server's end.
	front.SendQuery(&pgproto3.Query{String: "INSERT"})
	require.NoError(t, front.Flush())
	require.Eventually(t, func() bool { return count(b.commands(), "INSERT") == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, ways["simple"](t, connect(t, p), "COMMIT"), "others are not concerned")
	b.hangUp()
	require.NoError(t, conn.Conn().SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = front.Receive()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	p.DropAll()
	require.NoError(t, conn.Conn().SetReadDeadline(time.Time{}))
	_, err = io.ReadAll(conn.Conn())
	require.True(t, err == nil || errors.Is(err, syscall.ECONNRESET), "%v", err)
}

func TestWhatLastsEnds(t *testing.T) {
	p := startProxy(t, startBackend(t))
	conn := connect(t, p)
	fault := play(t, p, "before BEGIN: stall client for 20ms, delay 1ms for 30ms, refuse for 25ms, trickle both 1000 B/s for 40ms")[0]
	began := time.Now()
	require.NoError(t, ways["simple"](t, conn, "BEGIN"))
	<-fault.Fired()
	require.GreaterOrEqual(t, time.Since(began), 20*time.Millisecond)
	require.Eventually(t, func() bool {
		other, err := pgconn.Connect(t.Context(), "postgres://u@"+p.Addr()+"/d?sslmode=disable")
		if err != nil {
			return false
		}
		_ = other.Close(t.Context())
		<-other.CleanupDone()
		return p.delay.get() == 0 && p.clientRate.get() == 0 && p.serverRate.get() == 0
	}, time.Minute, time.Millisecond)
}

// The end of what lasted does not end what was set after it.
func TestWhatLastsEndsItselfAlone(t *testing.T) {
	var s setting
	end := s.set(1)
	s.set(2)
	end()
	require.EqualValues(t, 2, s.get())

	g := newGate()
	end = g.stall()
	g.resume()
	g.stall()
	end()
	require.False(t, isClosed(g.open()))
}

func TestCalm(t *testing.T) {
	b := startBackend(t)
	p := startProxy(t, b)
	play(t, p, "now: refuse, stall both, delay 1h, trickle both 1 B/s\nbefore COMMIT: cut")
	p.Calm()
	require.NoError(t, ways["simple"](t, connect(t, p), "COMMIT"))
}

// A fault whose statement was skipped waits for the next one, unless it was disarmed
// meanwhile.
func TestCalmReachesFaultsUnderWay(t *testing.T) {
	b := startBackend(t)
	p := startProxy(t, b)
	conn := connect(t, p)
	p.CutCommitReply(1)
	p.Stall(FromServer)
	conn.Frontend().SendQuery(&pgproto3.Query{String: "FAIL; COMMIT"})
	require.NoError(t, conn.Frontend().Flush())
	require.Eventually(t, func() bool { return len(b.commands()) == 1 }, time.Minute, time.Millisecond)
	p.Calm()
	_, err := conn.ReceiveMessage(t.Context()) // the error
	require.NoError(t, err)
	_, err = conn.ReceiveMessage(t.Context())
	require.NoError(t, err)
	require.NoError(t, ways["simple"](t, conn, "COMMIT"))
}

// Whatever a link is like, what comes out of it is what went in, once.
func TestForwardsOnceAndUnchanged(t *testing.T) {
	for name, script := range map[string]string{
		"plain":   "now: accept",
		"slow":    "now: delay 5ms",
		"trickle": "now: trickle both 50000 B/s",
		"stalled": "now: stall both for 30ms",
		"all":     "now: stall client for 10ms, delay 2ms, trickle server 80000 B/s for 50ms",
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer listener.Close()
			p, err := Listen(listener.Addr().String())
			require.NoError(t, err)
			t.Cleanup(p.Close)

			startup, err := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30}).Encode(nil)
			require.NoError(t, err)
			// Frames of all sizes and kinds; those that are looked into make sense.
			sent := func(query string) []byte {
				var all []byte
				for i := range 40 {
					all = append(all, "dchXYT"[i%6], 0, 0, byte(i*i>>8), byte(i*i)|4)
					size := i*i&^0xff | int(byte(i*i)|4)
					for n := range size - 4 {
						all = append(all, byte(n*i))
					}
				}
				all, err := (&pgproto3.Query{String: query}).Encode(all)
				require.NoError(t, err)
				return all
			}
			type received struct {
				bytes []byte
				err   error
			}
			atServer := make(chan received, 1)
			go func() {
				server, err := listener.Accept()
				if err != nil {
					atServer <- received{err: err}
					return
				}
				defer server.Close()
				written := make(chan error, 1)
				go func() {
					_, err := server.Write(sent("from the server"))
					written <- err
				}()
				bytes := make([]byte, len(startup)+len(sent("COMMIT")))
				_, err = io.ReadFull(server, bytes)
				atServer <- received{bytes, errors.Join(err, <-written)}
			}()
			client, err := net.Dial("tcp", p.Addr())
			require.NoError(t, err)
			defer client.Close()
			play(t, p, script)
			_, err = client.Write(append(startup, sent("COMMIT")...))
			require.NoError(t, err)
			fromServer, err := io.ReadAll(client)
			require.NoError(t, err)
			require.Equal(t, sent("from the server"), fromServer)
			got := <-atServer
			require.NoError(t, got.err)
			require.Equal(t, append(startup, sent("COMMIT")...), got.bytes)
		})
	}
}
