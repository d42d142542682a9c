package operate

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

func TestTypesThatHoldAllOfOthers(t *testing.T) {
	for _, fits := range [][2]string{
		{"integer", "integer"},
		{"bigint", "integer"},
		{"numeric", "numeric(8,2)"},
		{"text", "json"},
		{"character varying", "text"},
		{"character varying(20)", "character varying(10)"},
		{"character varying", "character varying(10)"},
		{"double precision", "real"},
		{"timestamp without time zone", "timestamp(3) without time zone"},
		{"numeric(8,-2)", "numeric(8,-2)"},
		{"numeric[]", "numeric(8,-2)[]"},
	} {
		require.True(t, holds(fits[0], fits[1]), fits)
	}
	for _, narrower := range [][2]string{
		{"integer", "bigint"},
		{"numeric(8,2)", "numeric"},
		{"numeric(8,2)", "numeric(9,2)"},
		{"character varying(10)", "character varying(20)"},
		{"character varying(10)", "text"},
		{"jsonb", "json"},
		{"timestamp(0) without time zone", "timestamp without time zone"},
		{"uuid", "text"},
	} {
		require.False(t, holds(narrower[0], narrower[1]), narrower)
	}
}

func TestCheckOfTypesAndOfWhatIsNotReplicated(t *testing.T) {
	b := sharedBed(t)
	pgtest.Exec(t, b.source, `create table t (a bigint primary key, b varchar(20), c text)`, `create table other (a int)`,
		`create unlogged table fast (a int)`, `create materialized view sum as select 1`, `select lo_create(0)`,
		`create table whole (a int primary key) partition by list (a)`, `create table half (a int) partition by list (a)`,
		`create table whole_1 partition of whole for values in (1) partition by list (a)`, `create table whole_1_1 partition of whole_1 for values in (1)`,
		`create table half_1 partition of half (a primary key) for values in (1)`, `create table half_2 partition of half for values in (2)`,
		`create publication p for table t, whole_1_1, half_1`)
	pgtest.Exec(t, b.target, `create table t (a int primary key, b varchar(10), c text)`, `create table whole_1_1 (a int primary key)`, `create table half_1 (a int primary key)`,
		`create materialized view sum as select 1 with no data`, `create materialized view filled as select 1`)
	checkup := b.check()
	require.Equal(t, []string{
		"warning not replicated: 1 unlogged table (public.fast): changes of it are not in the WAL | ALTER TABLE ... SET LOGGED on the publisher, or copy it by other means",
		"warning not replicated: 1 materialized view (public.sum) of the target without data: replication does not fill them | on the target, after the copy: REFRESH MATERIALIZED VIEW, each of them",
		"warning not replicated: 1 large object: no publication has them | copy them by other means, as with pg_dump --large-objects, when nobody writes to them",
		`warning public.t: types differ, and a value that does not fit stops the subscription: "a" (bigint, and integer on the target), "b" (character varying(20), and character varying(10) on the target) | give them the publisher's types, or be sure that all values fit`,
	}, checkup.complaints())
	require.Contains(t, checkup.Text(), "DDL; sequences, which `pgapply sequences --name orders` copies; 2 tables that are not published (public.half, public.other); 1 materialized view (public.sum)\n")
}

func TestCheckOfHowLongTheSlotIsKept(t *testing.T) {
	of := func(k keeping) string {
		c := Checkup{Findings: checkKeeping(&facts{publisher: &publisherFacts{keeping: k}})}
		return c.Text()
	}
	require.Contains(t, of(keeping{}), "ok       retention  while no runner streams the publisher keeps all WAL, without a limit")
	require.Contains(t, of(keeping{hasLimit: true, mostWAL: -1 << 20}), "without a limit")
	require.Contains(t, of(keeping{hasLimit: true, mostWAL: 100 << 30}), "ok       retention  max_slot_wal_keep_size is 100.0 GiB")
	require.Contains(t, of(keeping{hasLimit: true, mostWAL: 64 << 20}), "warning  retention  max_slot_wal_keep_size is 64.0 MiB")
	require.Contains(t, of(keeping{mostIdle: time.Hour}), "warning  retention  idle_replication_slot_timeout is 1h0m: ")
}

func TestCheckOfThePlugin(t *testing.T) {
	of := func(list string) []Finding {
		return checkPlugins(&facts{publisher: &publisherFacts{keeping: keeping{plugins: list}}})
	}
	for _, list := range []string{"", "pgoutput", `test_decoding, "pgoutput"`, "*"} {
		require.Empty(t, of(list), list)
	}
	found := of("test_decoding,wal2json")
	require.Equal(t, Failure, found[0].Level)
	require.Equal(t, `output_plugin_libraries is "test_decoding,wal2json": the publisher may not load pgoutput`, found[0].Text)
}

func TestCheckOfTheClocks(t *testing.T) {
	now := time.Now()
	at := func(ahead time.Duration) clock {
		return clock{says: now.Add(ahead + 5*time.Millisecond), before: now, after: now.Add(10 * time.Millisecond)}
	}
	of := func(publisher, target time.Duration, policies ...string) string {
		options := apply.DefaultOptions()
		for _, policy := range policies {
			require.NoError(t, options.OnConflict.Set(policy))
		}
		found := checkClocks(&facts{options: options, publisher: &publisherFacts{clock: at(publisher)}, target: &targetFacts{clock: at(target)}})
		require.Len(t, found, 1)
		return string(found[0].Level) + ": " + found[0].Text
	}
	require.Equal(t, "ok: those of publisher, target and this machine agree within 1.0s", of(500*time.Millisecond, -400*time.Millisecond))
	require.Contains(t, of(2*time.Second, 0), "warning: the clocks of publisher and target are 2.0s apart: times of commits")
	require.Contains(t, of(90*time.Second, 90*time.Second), "warning: the publisher's clock and that of this machine are 1m30s apart")
	require.Contains(t, of(500*time.Millisecond, 0, "insert_exists=last_update_wins"), "warning: the clocks of publisher and target are 0.5s apart: last_update_wins")
}

func TestCheckOfWhatStandsBeforeTheTarget(t *testing.T) {
	b := sharedBed(t)
	direct := b.target
	pgtest.Exec(t, b.source, `create table t (a int primary key)`, `create publication p for table t`)
	pgtest.Exec(t, b.target, `create table t (a int primary key)`)
	b.ends.Target = through(t, direct, false)
	requireComplaint(t, b.check(), "warning target: the connection goes through a proxy or a pooler")
	b.ends.Target = through(t, direct, true)
	checkup := b.check()
	require.Contains(t, strings.Join(checkup.complaints(), "\n"), "error target: the target is behind a connection pooler: ")
	require.Error(t, checkup.Err())
}

// through is the way to a server through a proxy that answers the login by itself, and
// names a process of its own; with shared, all clients take turns on one session.
func through(t *testing.T, uri string, shared bool) string {
	t.Helper()
	parsed, err := url.Parse(uri)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	pool := &pooler{address: parsed.Host, shared: shared}
	t.Cleanup(func() {
		listener.Close()
		pool.close()
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go pool.serve(client)
		}
	}()
	parsed.Host = listener.Addr().String()
	return parsed.String()
}

// pooler is a pooler without manners: it knows of no transactions, and its clients must
// not talk at the same time.
type pooler struct {
	address string
	shared  bool

	mu       sync.Mutex
	server   net.Conn // of all, where they share one
	greeting []byte
	client   net.Conn // the one that has spoken last
}

func (p *pooler) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		p.server.Close()
	}
}

func (p *pooler) serve(client net.Conn) {
	defer client.Close()
	startup, err := message(client, 0)
	if err != nil {
		return
	}
	server, greeting, err := p.session(startup, client)
	if err != nil {
		return
	}
	if !p.shared {
		defer server.Close()
	}
	if _, err := client.Write(greeting); err != nil {
		return
	}
	for {
		said, err := message(client, 1)
		if err != nil || said[0] == 'X' {
			return
		}
		p.mu.Lock()
		p.client = client
		p.mu.Unlock()
		if _, err := server.Write(said); err != nil {
			return
		}
	}
}

// session is one with the server, and what the client is to hear at its login.
func (p *pooler) session(startup []byte, client net.Conn) (net.Conn, []byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		return p.server, p.greeting, nil
	}
	server, err := net.Dial("tcp", p.address)
	if err != nil {
		return nil, nil, err
	}
	if _, err := server.Write(startup); err != nil {
		return nil, nil, err
	}
	var greeting []byte
	for {
		said, err := message(server, 1)
		if err != nil {
			return nil, nil, err
		}
		if said[0] == 'K' {
			binary.BigEndian.PutUint32(said[5:], 4711)
		}
		greeting = append(greeting, said...)
		if said[0] == 'Z' {
			break
		}
	}
	if p.shared {
		p.server, p.greeting = server, greeting
	}
	go p.answer(server, client)
	return server, greeting, nil
}

// answer gives what the server says to the client that has asked last.
func (p *pooler) answer(server, client net.Conn) {
	for {
		said, err := message(server, 1)
		if err != nil {
			client.Close()
			return
		}
		if p.shared {
			p.mu.Lock()
			client = p.client
			p.mu.Unlock()
		}
		_, _ = client.Write(said)
	}
}

// message reads one, whose length stands behind so many bytes.
func message(from io.Reader, before int) ([]byte, error) {
	head := make([]byte, before+4)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[before:])-4)
	_, err := io.ReadFull(from, body)
	return append(head, body...), err
}
