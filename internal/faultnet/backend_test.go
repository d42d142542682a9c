package faultnet

import (
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// backend is a server that runs nothing: it records the commands it sees, and
// completes each, but FAIL with an error.
type backend struct {
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	seen    []string
	cancels int
	conns   []net.Conn
}

func startBackend(t *testing.T) *backend {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &backend{listener: listener}
	b.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conns = append(b.conns, conn)
			b.mu.Unlock()
			b.running.Go(func() { b.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		b.hangUp()
		b.running.Wait()
	})
	return b
}

func (b *backend) hangUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range b.conns {
		conn.Close()
	}
}

func (b *backend) commands() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.seen...)
}

func (b *backend) serve(conn net.Conn) {
	defer conn.Close()
	server := pgproto3.NewBackend(conn, conn)
	startup, err := server.ReceiveStartupMessage()
	if err != nil {
		return
	}
	if _, ok := startup.(*pgproto3.CancelRequest); ok {
		b.mu.Lock()
		b.cancels++
		b.mu.Unlock()
		return
	}
	ready := &pgproto3.ReadyForQuery{TxStatus: 'I'}
	server.Send(&pgproto3.AuthenticationOk{})
	server.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}})
	server.Send(ready)

	prepared, portals := map[string]string{}, map[string]string{}
	skipping := false
	// run completes each statement, and reports false after an error.
	run := func(sql string) bool {
		for _, name := range commands(sql) {
			b.mu.Lock()
			b.seen = append(b.seen, name)
			b.mu.Unlock()
			if name == "FAIL" {
				server.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "XX000", Message: "as asked"})
				return false
			}
			server.Send(&pgproto3.CommandComplete{CommandTag: []byte(name)})
		}
		return true
	}
	for server.Flush() == nil {
		message, err := server.Receive()
		if err != nil {
			return
		}
		if _, ok := message.(*pgproto3.Sync); skipping && !ok {
			continue
		}
		switch m := message.(type) {
		case *pgproto3.Query:
			if commands(m.String)[0] == "START_REPLICATION" {
				server.Send(&pgproto3.CopyBothResponse{})
				break
			}
			run(m.String)
			server.Send(ready)
		case *pgproto3.CopyData:
			if m.Data[0] == 'r' {
				run("STATUS_UPDATE")
			}
		case *pgproto3.Parse:
			prepared[m.Name] = m.Query
			server.Send(&pgproto3.ParseComplete{})
		case *pgproto3.Bind:
			portals[m.DestinationPortal] = prepared[m.PreparedStatement]
			server.Send(&pgproto3.BindComplete{})
		case *pgproto3.Describe:
			if m.ObjectType == 'S' {
				server.Send(&pgproto3.ParameterDescription{})
			}
			server.Send(&pgproto3.NoData{})
		case *pgproto3.Execute:
			skipping = !run(portals[m.Portal])
		case *pgproto3.Sync:
			skipping = false
			server.Send(ready)
		case *pgproto3.Terminate:
			return
		}
	}
}
