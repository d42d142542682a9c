package decoder

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// rewriteGoldens captures all golden files of a major from a server of it.
func rewriteGoldens(t *testing.T, major int) {
	server := pgtest.Start(t, pgtest.OnMajor(major))
	require.Equal(t, major, server.Major(), "golden files need a server of the very major")
	directory := goldenDirectory(major)
	require.NoError(t, os.RemoveAll(directory))
	require.NoError(t, os.MkdirAll(directory, 0o755))
	for _, capture := range captures() {
		if major < capture.since {
			continue
		}
		t.Run("capture "+capture.name, func(t *testing.T) {
			frames := capture.run(t, server)
			header := fmt.Sprintf("# PostgreSQL %s, %s\n", server.Installation().Version, strings.Join(capture.options(major), ", "))
			path := filepath.Join(directory, capture.name+".golden")
			require.NoError(t, os.WriteFile(path, []byte(header+goldenDirectives(frames)), 0o644))
		})
	}
}

// run plays the workload in a database of its own and returns the frames that a
// subscriber gets meanwhile.
func (c capture) run(t *testing.T, server *cluster.Cluster) [][]byte {
	uri := pgtest.Database(t, server)
	sessions := &sessions{uri: uri, open: map[string]*pgconn.PgConn{}}
	sessions.exec(t, "", `create table marker (line text)`)
	for _, step := range c.setup {
		if step.since <= server.Major() {
			sessions.exec(t, step.session, step.sql)
		}
	}
	slot := "golden_" + c.name
	if c.twoPhase {
		sessions.exec(t, "", `select pg_create_logical_replication_slot('`+slot+`', 'pgoutput', false, true)`)
	} else {
		sessions.exec(t, "", `select pg_create_logical_replication_slot('`+slot+`', 'pgoutput')`)
	}

	var stream *frameReader
	start := func() {
		stream = startReading(t, uri, slot, server.Major(), append(c.options(server.Major()), "publication_names 'p'"))
	}
	if !c.late {
		start()
	}
	for _, step := range c.workload {
		if step.since > server.Major() {
			continue
		}
		sessions.exec(t, step.session, step.sql)
		if step.await {
			stream.await(t, sessions)
		}
	}
	if c.late {
		start()
	}
	stream.await(t, sessions)
	// Origins belong to all databases, and decoding looks up their names.
	sessions.exec(t, "", `select pg_replication_origin_drop(roname) from pg_replication_origin`)
	return stream.frames
}

// sessions are the connections of a workload, by name.
type sessions struct {
	uri  string
	open map[string]*pgconn.PgConn
}

func (s *sessions) exec(t *testing.T, name, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if s.open[name] == nil {
		s.open[name] = connect(t, s.uri, "")
	}
	_, err := s.open[name].Exec(ctx, sql).ReadAll()
	require.NoError(t, err, sql)
}

// frameReader reads what the walsender sends. Nothing is acknowledged: the
// capture is over long before the server gives up on it.
type frameReader struct {
	conn    *pgconn.PgConn
	frames  [][]byte
	markers int
}

func startReading(t *testing.T, uri, slot string, major int, options []string) *frameReader {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn := connect(t, uri, "database")
	if major >= 13 {
		// The least there is: workloads need few changes to exceed it.
		_, err := conn.Exec(ctx, `set logical_decoding_work_mem = '64kB'`).ReadAll()
		require.NoError(t, err)
	}
	require.NoError(t, pglogrepl.StartReplication(ctx, conn, slot, 0, pglogrepl.StartReplicationOptions{PluginArgs: options}))
	return &frameReader{conn: conn}
}

// await reads until everything that has happened so far was decoded: up to the
// end of a transaction of its own, which stays in the capture.
func (r *frameReader) await(t *testing.T, sessions *sessions) {
	t.Helper()
	r.markers++
	marker := fmt.Sprintf("marker %d", r.markers)
	sessions.exec(t, "marker", `insert into marker values ('`+marker+`')`)
	for seen := false; ; {
		frame := r.next(t)
		r.frames = append(r.frames, frame)
		switch {
		case bytes.Contains(frame, []byte(marker)):
			seen = true
		case seen && Type(frame[0]) == TypeCommit:
			return
		}
	}
}

func (r *frameReader) next(t *testing.T) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		message, err := r.conn.ReceiveMessage(ctx)
		require.NoError(t, err)
		data, isData := message.(*pgproto3.CopyData)
		require.True(t, isData, "the server sent %#v", message)
		if data.Data[0] != pglogrepl.XLogDataByteID {
			continue // keepalive
		}
		const header = 1 + 8 + 8 + 8
		return bytes.Clone(data.Data[header:])
	}
}

// patience bounds each wait for the server.
const patience = time.Minute

func connect(t *testing.T, uri, replication string) *pgconn.PgConn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	config, err := pgconn.ParseConfig(uri)
	require.NoError(t, err)
	if replication != "" {
		config.RuntimeParams["replication"] = replication
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}
