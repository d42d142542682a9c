package source

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
)

// fakePublisher is a server that streams what a test tells it to. It does what
// a real one cannot be made to do: be silent, dribble, or send rubbish.
type fakePublisher struct {
	t       *testing.T
	conn    net.Conn
	backend *pgproto3.Backend
}

// withFake connects to a fake publisher and starts a stream. serve runs beside
// the test and owns the server's end; it returns when it has seen enough.
func withFake(t *testing.T, options StreamOptions, serve func(*fakePublisher)) *Stream {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		fake := &fakePublisher{t: t, conn: conn, backend: pgproto3.NewBackend(conn, conn)}
		if fake.handshake() {
			serve(fake)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-ended
	})
	address := listener.Addr().(*net.TCPAddr)
	conn, err := Connect(t.Context(), Options{URI: fmt.Sprintf("host=127.0.0.1 port=%d user=u dbname=d sslmode=disable", address.Port)})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	if options.Slot == "" {
		options.Slot = "s"
	}
	options.Publications = []string{"p"}
	stream, err := conn.StartStream(context.Background(), options)
	require.NoError(t, err)
	t.Cleanup(func() { stream.Close() })
	return stream
}

// handshake answers everything up to START_REPLICATION.
func (f *fakePublisher) handshake() bool {
	if _, err := f.backend.ReceiveStartupMessage(); err != nil {
		f.t.Error(err)
		return false
	}
	f.send(&pgproto3.AuthenticationOk{}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	for {
		message, err := f.backend.Receive()
		if err != nil {
			f.t.Error(err)
			return false
		}
		query, ok := message.(*pgproto3.Query)
		switch {
		case !ok:
			f.t.Errorf("unexpected %T", message)
			return false
		case strings.HasPrefix(query.String, "START_REPLICATION"):
			f.send(&pgproto3.CopyBothResponse{})
			return true
		case strings.Contains(query.String, "server_version_num"):
			f.row("", "180004", "0")
		default:
			f.row()
		}
	}
}

func (f *fakePublisher) row(values ...string) {
	fields := make([]pgproto3.FieldDescription, len(values))
	row := make([][]byte, len(values))
	for i, value := range values {
		fields[i].Name = []byte("c")
		row[i] = []byte(value)
	}
	f.send(&pgproto3.RowDescription{Fields: fields}, &pgproto3.DataRow{Values: row},
		&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
}

// send ignores errors: the test is about what its other end sees.
func (f *fakePublisher) send(messages ...pgproto3.BackendMessage) {
	for _, message := range messages {
		f.backend.Send(message)
	}
	_ = f.backend.Flush()
}

func (f *fakePublisher) data(payload string) {
	f.send(&pgproto3.CopyData{Data: append(append([]byte{'w'}, make([]byte, 24)...), payload...)})
}

// raw sends a CopyData of any content.
func (f *fakePublisher) raw(data []byte) { f.send(&pgproto3.CopyData{Data: data}) }

func (f *fakePublisher) keepalive(end lsn.LSN, replyRequested bool) {
	data := binary.BigEndian.AppendUint64([]byte{'k'}, uint64(end))
	data = append(data, make([]byte, 8)...)
	if replyRequested {
		data = append(data, 1)
	} else {
		data = append(data, 0)
	}
	f.send(&pgproto3.CopyData{Data: data})
}

// status is what the fake publisher was told.
type status struct {
	written, flushed, applied lsn.LSN
	replyRequested            bool
}

// status waits for the next status, false when the stream has ended.
func (f *fakePublisher) status() (status, bool) {
	message, err := f.backend.Receive()
	if err != nil {
		return status{}, false
	}
	data, ok := message.(*pgproto3.CopyData)
	if !ok || len(data.Data) != statusLength || data.Data[0] != 'r' {
		return status{}, false
	}
	position := func(offset int) lsn.LSN { return lsn.LSN(binary.BigEndian.Uint64(data.Data[offset:])) }
	return status{written: position(1), flushed: position(9), applied: position(17), replyRequested: data.Data[33] == 1}, true
}

// drain reads until the other end has closed the connection.
func (f *fakePublisher) drain() { _, _ = io.Copy(io.Discard, f.conn) }
