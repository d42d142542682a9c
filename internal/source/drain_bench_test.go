package source

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"pgapply/internal/pgtest"
)

const drainTransactions = 100_000

// BenchmarkDrain drains a backlog of one-row transactions with each kind of
// socket in turn, so that a busy machine hits all of them alike. CPU seconds
// are as telling as the time: a reader that wakes for each message burns the
// publisher's.
//
//	go test ./internal/source -run '^$' -bench Drain -benchtime 5x
func BenchmarkDrain(b *testing.B) {
	server := pgtest.Start(b, pgtest.With("max_wal_size", "4GB"), pgtest.With("autovacuum", "off"), pgtest.With("synchronous_commit", "off"))
	uri := pgtest.Database(b, server)
	pgtest.Exec(b, uri,
		`create table t (id int primary key, v text)`,
		`create publication p for table t`,
		`select pg_create_logical_replication_slot('drain', 'pgoutput')`,
		fmt.Sprintf(`do $$ begin for i in 1..%d loop insert into t values (i, 'some text of a row'); commit; end loop; end $$`, drainTransactions))
	local := uri
	if server.SocketDir() != "" {
		config := pgtest.Query(b, uri, `select current_database()`)
		local = fmt.Sprintf("host=%s port=%d user=postgres dbname=%s", server.SocketDir(), server.Port(), config)
	}
	kinds := []struct {
		name, uri string
		wrap      func(net.Conn) (socket, error)
	}{
		{"tcp/plain", uri, plainSocket},
		{"tcp/portable", uri, func(conn net.Conn) (socket, error) { return newPacedConn(conn), nil }},
		{"tcp/coalesced", uri, newSocket},
		{"unix/plain", local, plainSocket},
		{"unix/coalesced", local, newSocket},
	}
	total := make([]drained, len(kinds))
	for b.Loop() {
		for i, kind := range kinds {
			one := drain(b, Options{URI: kind.uri, wrap: kind.wrap})
			pgtest.WaitFor(b, uri, `select active from pg_replication_slots`, "f")
			fmt.Printf("%-15s %s\n", kind.name, one) // a log would be cut off
			total[i].add(one)
		}
	}
	for i, kind := range kinds {
		b.ReportMetric(float64(total[i].frames)/total[i].wall.Seconds(), kind.name+":frames/s")
		b.ReportMetric(total[i].wall.Seconds()/float64(b.N), kind.name+":s")
		b.ReportMetric(total[i].reader.Seconds()/float64(b.N), kind.name+":reader-cpu-s")
		b.ReportMetric(total[i].sender.Seconds()/float64(b.N), kind.name+":sender-cpu-s")
	}
	b.ReportMetric(0, "ns/op")
}

func plainSocket(conn net.Conn) (socket, error) {
	return &watchedConn{Conn: conn, silence: newSilence()}, nil
}

// drained is what one drain took.
type drained struct {
	frames               int
	wall, reader, sender time.Duration
}

func (d *drained) add(other drained) {
	d.frames += other.frames
	d.wall += other.wall
	d.reader += other.reader
	d.sender += other.sender
}

func (d drained) String() string {
	return fmt.Sprintf("%8.0f frames/s  %5.2f s  reader %5.2f CPU s  walsender %5.2f CPU s",
		float64(d.frames)/d.wall.Seconds(), d.wall.Seconds(), d.reader.Seconds(), d.sender.Seconds())
}

func drain(b *testing.B, options Options) drained {
	conn, err := Connect(b.Context(), options)
	require.NoError(b, err)
	pid := conn.pg.PID()
	before := drained{reader: ownCPU(b), sender: processCPU(b, pid)}
	start := time.Now()
	stream, err := conn.StartStream(b.Context(), StreamOptions{Slot: "drain", Publications: []string{"p"}})
	require.NoError(b, err)
	defer stream.Close()
	frames := 0
	for commits := 0; commits < drainTransactions; frames++ {
		frame, err := stream.Receive()
		require.NoError(b, err)
		if frame.Kind == Data && frame.Payload[0] == 'C' {
			commits++
		}
	}
	return drained{
		frames: frames, wall: time.Since(start),
		reader: ownCPU(b) - before.reader, sender: processCPU(b, pid) - before.sender,
	}
}

func ownCPU(b *testing.B) time.Duration {
	var usage unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// processCPU is the user and system time of a process, in steps of 10 ms.
func processCPU(b *testing.B, pid uint32) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(b, err)
	// The fields after the name in parentheses: utime and stime are 14 and 15 of all.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	var ticks int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(string(field))
		require.NoError(b, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
