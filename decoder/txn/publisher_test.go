package txn

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"pgapply/decoder"
	"pgapply/internal/lsn"
)

// publisher is a naive model of a server with a few tables and sessions. It
// decides at random what they do, sends the frames that the server would send,
// and knows what each transaction must then contain: all changes but those of
// the subtransactions that were rolled back, each with the table as the server
// described it at that moment.
//
// What it tells about tables follows pgoutput.c (RelationSyncEntry): a table is
// described once to ordinary transactions together and once to each streamed
// one, and again after anything that may have changed it; a committed stream has
// told everybody, and the rollback of a subtransaction makes the stream forget
// what it has told.
type publisher struct {
	*rapid.T
	wire     wire
	send     func(f frame, completes *expected)
	xid      uint32
	position lsn.LSN
	tables   []*modelTable
	streams  []*session
	prepared []*session
}

// expected is a transaction that must come out.
type expected struct {
	header  string
	changes []string
}

type modelTable struct {
	id          uint32
	version     int // changed by whoever holds the lock
	publication int // changed by anybody: it locks nothing
	told        bool
	locked      *session // has changed the table and is not done
}

// session is one transaction on the publisher.
type session struct {
	xid      uint32
	streamed bool
	origin   string
	gid      string
	changes  []modelChange
	aborted  map[uint32]bool
	levels   []*level            // open savepoints
	versions map[*modelTable]int // of tables that it has changed itself
	used     map[*modelTable]bool
	told     map[*modelTable]bool // of a streamed one
}

// level is a savepoint: its subtransaction, which has an id once it has changed
// something, and those inside it that were released.
type level struct {
	xid      uint32
	released []uint32
	versions map[*modelTable]int // as they were before
}

type modelChange struct {
	subxid uint32
	text   string
}

func newPublisher(t *rapid.T, send func(f frame, completes *expected)) *publisher {
	p := &publisher{T: t, send: send, xid: 700, position: 0x1000}
	for id := range rapid.IntRange(1, 4).Draw(t, "tables") {
		p.tables = append(p.tables, &modelTable{id: uint32(id + 1)})
	}
	return p
}

// step lets one session do something.
func (p *publisher) step() {
	actions := []func(){
		p.ordinary, p.ordinary, p.block, p.block, p.block, p.block, p.rollbackToSavepoint, p.rollbackToSavepoint,
		p.endStream, p.endStream, p.decide, p.republish, p.noise, p.restart,
	}
	actions[p.choose(len(actions), "action")]()
}

func (p *publisher) choose(n int, what string) int {
	return rapid.IntRange(0, n-1).Draw(p.T, what)
}

func (p *publisher) chance(percent int, what string) bool { return p.choose(100, what) < percent }

func (p *publisher) newXID() uint32 {
	p.xid++
	return p.xid
}

func (p *publisher) newSession(streamed bool) *session {
	s := &session{
		xid: p.newXID(), streamed: streamed,
		aborted: map[uint32]bool{}, versions: map[*modelTable]int{},
		used: map[*modelTable]bool{}, told: map[*modelTable]bool{},
	}
	if p.chance(20, "has origin") {
		s.origin = fmt.Sprint("origin", s.xid)
	}
	return s
}

// record returns the start and end of a new WAL record.
func (p *publisher) record() (final, end lsn.LSN) {
	p.position += 16
	return p.position, p.position + 8
}

// ordinary sends a whole transaction at once, as most are.
func (p *publisher) ordinary() {
	s := p.newSession(false)
	final, end := p.record()
	prepare := p.chance(30, "prepare")
	if prepare {
		s.gid = fmt.Sprint("gid", s.xid)
		p.send(p.wire.beginPrepare(s.xid, final, end, s.gid), nil)
	} else {
		p.send(p.wire.begin(s.xid, final), nil)
	}
	if s.origin != "" {
		p.send(p.wire.origin(s.origin), nil)
	}
	for range p.choose(6, "changes") {
		p.change(s)
	}
	if prepare {
		p.prepared = append(p.prepared, s)
		p.invalidate(s.versions)
		p.send(p.wire.prepare(s.xid, final, end, s.gid), s.expect("PREPARE TRANSACTION", final, end))
		return
	}
	p.finish(s, true)
	p.send(p.wire.commit(s.xid, final, end), s.expect("COMMIT", final, end))
}

// block sends the next changes of a streamed transaction.
func (p *publisher) block() {
	first := len(p.streams) == 0 || len(p.streams) < 4 && p.chance(30, "new stream")
	if first {
		p.streams = append(p.streams, p.newSession(true))
	}
	s := p.streams[len(p.streams)-1]
	if !first {
		s = p.streams[p.choose(len(p.streams), "stream")]
	}
	p.startBlock(s, first)
	for range p.choose(12, "steps") {
		switch p.choose(8, "step") {
		case 0, 1:
			s.levels = append(s.levels, &level{versions: maps.Clone(s.versions)})
		case 2:
			s.release()
		default:
			p.change(s)
		}
	}
	p.send(p.wire.streamStop(), nil)
}

func (p *publisher) startBlock(s *session, first bool) {
	p.send(p.wire.streamStart(s.xid, first), nil)
	if first && s.origin != "" {
		p.send(p.wire.origin(s.origin), nil)
	}
}

// release is RELEASE SAVEPOINT.
func (s *session) release() {
	if len(s.levels) == 0 {
		return
	}
	last := s.levels[len(s.levels)-1]
	s.levels = s.levels[:len(s.levels)-1]
	if len(s.levels) > 0 {
		parent := s.levels[len(s.levels)-1]
		parent.released = append(parent.released, last.xids()...)
	}
}

func (l *level) xids() []uint32 {
	if l.xid == 0 {
		return l.released
	}
	return append(slices.Clone(l.released), l.xid)
}

// rollbackToSavepoint tells of every subtransaction that is gone, in any order.
func (p *publisher) rollbackToSavepoint() {
	var candidates []*session
	for _, s := range p.streams {
		if len(s.levels) > 0 {
			candidates = append(candidates, s)
		}
	}
	if len(candidates) == 0 {
		return
	}
	s := candidates[p.choose(len(candidates), "stream")]
	to := p.choose(len(s.levels), "savepoint")
	gone := []uint32{99999} // one that never sent anything
	for _, level := range s.levels[to:] {
		gone = append(gone, level.xids()...)
	}
	changed := maps.Clone(s.versions)
	s.versions = s.levels[to].versions
	for table := range changed {
		if _, still := s.versions[table]; !still {
			table.locked = nil
		}
	}
	s.levels = s.levels[:to]
	for _, xid := range rapid.Permutation(gone).Draw(p.T, "order") {
		s.aborted[xid] = true
		p.abort(s.xid, xid)
	}
	clear(s.told)
	p.invalidate(changed)
}

func (p *publisher) abort(xid, subxid uint32) {
	if p.chance(50, "with position") {
		p.send(p.wire.streamAbortAt(xid, subxid), nil)
	} else {
		p.send(p.wire.streamAbort(xid, subxid), nil)
	}
}

// endStream commits, prepares or aborts a streamed transaction.
func (p *publisher) endStream() {
	if len(p.streams) == 0 {
		return
	}
	i := p.choose(len(p.streams), "stream")
	s := p.streams[i]
	p.streams = slices.Delete(p.streams, i, i+1)
	final, end := p.record()
	switch p.choose(3, "end") {
	case 0:
		var children []uint32
		for _, level := range s.levels {
			children = append(children, level.xids()...)
		}
		if len(children) > 0 {
			for _, xid := range rapid.Permutation(children).Draw(p.T, "order") {
				p.abort(s.xid, xid)
			}
		}
		p.abort(s.xid, s.xid)
		p.finish(s, false)
	case 1:
		s.gid = fmt.Sprint("gid", s.xid)
		p.prepared = append(p.prepared, s)
		p.tellAll(s)
		p.invalidate(s.versions)
		p.send(p.wire.streamPrepare(s.xid, final, end, s.gid), s.expect("PREPARE TRANSACTION", final, end))
	default:
		p.tellAll(s)
		p.finish(s, true)
		p.send(p.wire.streamCommit(s.xid, final, end), s.expect("COMMIT", final, end))
	}
}

// decide ends a prepared transaction.
func (p *publisher) decide() {
	if len(p.prepared) == 0 {
		return
	}
	i := p.choose(len(p.prepared), "prepared")
	s := p.prepared[i]
	p.prepared = slices.Delete(p.prepared, i, i+1)
	final, end := p.record()
	e := &session{xid: s.xid, gid: s.gid}
	if p.chance(50, "commit") {
		p.finish(s, true)
		p.send(p.wire.commitPrepared(s.xid, final, end, s.gid), e.expect("COMMIT PREPARED", final, end))
	} else {
		p.finish(s, false)
		p.send(p.wire.rollbackPrepared(s.xid, final, end, s.gid), e.expect("ROLLBACK PREPARED", 0, end))
	}
}

// republish changes the published columns of a table, which needs no lock.
func (p *publisher) republish() {
	table := p.tables[p.choose(len(p.tables), "table")]
	table.publication++
	p.invalidate(map[*modelTable]int{table: 0})
}

// noise is what belongs to no transaction.
func (p *publisher) noise() {
	if p.chance(50, "message") {
		p.send(p.wire.message(0, 0, "prefix", "at once"), nil)
	} else {
		p.abort(p.newXID(), p.newXID())
	}
}

// restart sends a streamed transaction from its start, which happens after the
// publisher has lost track of what it sent.
func (p *publisher) restart() {
	if len(p.streams) == 0 {
		return
	}
	s := p.streams[p.choose(len(p.streams), "stream")]
	for table := range s.versions {
		table.locked = nil
	}
	changed := s.versions
	*s = session{
		xid: s.xid, streamed: true, origin: s.origin,
		aborted: map[uint32]bool{}, versions: map[*modelTable]int{},
		used: map[*modelTable]bool{}, told: map[*modelTable]bool{},
	}
	p.invalidate(changed)
	p.startBlock(s, true)
	p.send(p.wire.streamStop(), nil)
}

// change is one statement of a session.
func (p *publisher) change(s *session) {
	kind := p.choose(12, "change")
	if kind == 0 {
		subxid := s.assign(p)
		content := p.data()
		s.note(subxid, "MESSAGE prefix: "+content)
		p.send(p.wire.message(subxid, 1, "prefix", content), nil)
		return
	}
	var usable []*modelTable
	for _, table := range p.tables {
		if table.locked == nil || table.locked == s {
			usable = append(usable, table)
		}
	}
	if len(usable) == 0 {
		return
	}
	table := usable[p.choose(len(usable), "table")]
	subxid := s.assign(p)
	if kind == 1 && !p.usedByOthers(table, s) {
		table.locked = s
		s.versions[table] = p.newVersion(table)
		p.invalidate(map[*modelTable]int{table: 0})
	}
	if kind == 2 {
		p.truncate(s, subxid, usable)
		return
	}
	relation := p.describe(s, subxid, table)
	name, row, old := showRelation(relation), p.row(relation), p.row(relation)
	switch kind {
	case 3, 4:
		s.note(subxid, fmt.Sprintf("UPDATE %s: K %s -> %s", name, showRow(old), showRow(row)))
		p.send(p.wire.update(subxid, relation.ID, decoder.OldKey, old, row), nil)
	case 5:
		s.note(subxid, fmt.Sprintf("DELETE %s: O %s", name, showRow(old)))
		p.send(p.wire.delete(subxid, relation.ID, decoder.OldFull, old), nil)
	default:
		s.note(subxid, fmt.Sprintf("INSERT %s: %s", name, showRow(row)))
		p.send(p.wire.insert(subxid, relation.ID, row), nil)
	}
}

func (p *publisher) truncate(s *session, subxid uint32, usable []*modelTable) {
	ids, text := []uint32{}, "TRUNCATE"
	for range p.choose(4, "truncated") {
		table := usable[p.choose(len(usable), "table")]
		relation := p.describe(s, subxid, table)
		ids = append(ids, relation.ID)
		text += " " + showRelation(relation)
	}
	s.note(subxid, text)
	p.send(p.wire.truncate(subxid, 0, ids...), nil)
}

// newVersion is one that the table has never had.
func (p *publisher) newVersion(table *modelTable) int {
	table.version += 1000 // an uncommitted version is never the committed one
	return table.version
}

func (p *publisher) usedByOthers(table *modelTable, s *session) bool {
	for _, other := range append(slices.Clone(p.streams), p.prepared...) {
		if other != s && other.used[table] {
			return true
		}
	}
	return false
}

// assign gives the innermost savepoint a transaction id, after those around it.
func (s *session) assign(p *publisher) uint32 {
	if !s.streamed {
		return s.xid
	}
	subxid := s.xid
	for _, level := range s.levels {
		if level.xid == 0 {
			level.xid = p.newXID()
		}
		subxid = level.xid
	}
	return subxid
}

func (s *session) note(subxid uint32, text string) {
	s.changes = append(s.changes, modelChange{subxid, text})
}

// describe returns the table as the session sees it, and tells it if need be.
func (p *publisher) describe(s *session, subxid uint32, t *modelTable) *decoder.Relation {
	s.used[t] = true
	version, own := s.versions[t]
	if !own {
		version = 0
	}
	columns := []string{"id*", "a", "b"}[:1+(version/1000+t.publication)%3]
	relation := table(t.id, fmt.Sprintf("t%d_%d_%d", t.id, version, t.publication), columns...)
	told := &t.told
	if s.streamed {
		streamTold := s.told[t]
		told = &streamTold
		s.told[t] = true
	}
	if !*told {
		p.send(p.wire.relation(subxid, relation), nil)
		*told = true
	}
	return relation
}

// invalidate makes everybody be told about the tables again.
func (p *publisher) invalidate(tables map[*modelTable]int) {
	for table := range tables {
		table.told = false
		for _, s := range p.streams {
			delete(s.told, table)
		}
	}
}

// tellAll: what a stream has told when it commits, everybody knows.
func (p *publisher) tellAll(s *session) {
	for table := range s.told {
		table.told = true
	}
}

// finish ends a session: its tables are free, and described again.
func (p *publisher) finish(s *session, commit bool) {
	for table := range s.versions {
		table.locked = nil
		if commit {
			table.publication += 7 // what everybody sees is new
		}
	}
	p.invalidate(s.versions)
}

func (p *publisher) row(relation *decoder.Relation) []decoder.Value {
	var values []string
	for range relation.Columns {
		values = append(values, p.data())
	}
	return text(values...)
}

// data is mostly short, and at times longer than several chunks.
func (p *publisher) data() string {
	switch size := p.choose(100, "size"); {
	case size < 3:
		return strings.Repeat("long", p.choose(200_000, "length"))
	case size < 20:
		return strings.Repeat("data", p.choose(1000, "length"))
	case size < 25:
		return "~"
	default:
		return fmt.Sprint("v", p.choose(1000, "value"))
	}
}

// expect is what must come out of the session.
func (s *session) expect(kind string, final, end lsn.LSN) *expected {
	e := &expected{header: fmt.Sprintf("%s %d at %s, end %s, streamed %t, gid %q, origin %q",
		kind, s.xid, final, end, s.streamed, s.gid, s.origin)}
	for _, change := range s.changes {
		if s.aborted[change.subxid] {
			continue
		}
		text := change.text
		if change.subxid != s.xid {
			text = fmt.Sprintf("[%d] %s", change.subxid, text)
		}
		e.changes = append(e.changes, text)
	}
	return e
}
