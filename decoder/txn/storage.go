package txn

import (
	"fmt"

	"pgapply/internal/invariant"
)

// This file decides where open transactions are stored, and charges them to the
// budget. The rule is one: when a chunk more would take the open transactions
// beyond their half of the budget, the one with most memory goes to its file,
// until there is room or nobody has any memory left. Then records go straight
// to their files.

// admit charges a transaction that has just begun.
func (a *Assembler) admit(o *assembly) {
	o.budget = a.budget
	a.account(o)
}

// account charges what an open transaction needs beside its tape, after that
// may have changed.
func (a *Assembler) account(o *assembly) {
	if needs := o.needs(); needs != o.bookkeeping {
		a.budget.charge(needs - o.bookkeeping)
		o.bookkeeping = needs
	}
}

// store appends a change to the current transaction.
func (a *Assembler) store(xid, relation uint32, frame []byte) error {
	change := record{relation: relation, subxid: a.current.XID, kind: frame[0], body: frame[1:]}
	if a.state == inStream {
		change.subxid, change.body = xid, frame[1+xidSize:]
	}
	tape := &a.current.tape
	if !tape.fits(change.size()) {
		fits, err := a.makeRoom(a.current, change.size())
		if err != nil {
			return err
		}
		if !fits {
			if err := a.writeThrough(a.current, &change); err != nil {
				return err
			}
			a.tell()
			return nil
		}
	}
	a.current.open.lock()
	tape.append(&change)
	a.current.open.unlock()
	a.tell()
	return nil
}

// writeThrough appends a record that there is no memory for.
func (a *Assembler) writeThrough(o *assembly, change *record) error {
	o.open.lock()
	defer o.open.unlock()
	return spoolFault(o, o.tape.writeThrough(change, a.budget, &a.head))
}

// xidSize is what a stream block inserts into the frame of a change, after the
// type of the message.
const xidSize = 4

// makeRoom gets the tape of o a chunk for a record of size bytes. Without
// memory for it, it reports false, and o has a file and nothing in memory.
func (a *Assembler) makeRoom(o *assembly, size int) (bool, error) {
	if o.tape.file != nil && o.tape.memory >= largestChunk {
		// What has a file once stays small in memory.
		if err := a.spill(o); err != nil {
			return false, err
		}
	}
	for {
		shared := a.share(o, size)
		capacity := int64(shared)
		if shared == 0 {
			capacity = o.tape.nextChunk(size)
		}
		if a.spool == nil {
			a.budget.charge(capacity)
		} else if !a.budget.reserve(capacity) {
			largest := a.largest()
			if largest == nil {
				return false, a.openFile(o)
			}
			if err := a.spill(largest); err != nil {
				return false, err
			}
			continue
		}
		o.open.lock()
		switch {
		case shared == 0:
			o.tape.grow(capacity, &a.budget.recycler)
		case len(o.tape.chunks) == 0:
			a.page.begin(&o.tape, shared)
		default:
			a.page.extend(&o.tape, shared)
		}
		o.open.unlock()
		return true, nil
	}
}

// share is how much more of the page the transaction gets for a record of size bytes, or 0
// where a chunk of its own is due.
func (a *Assembler) share(o *assembly, size int) int {
	if o != &a.plain || size > pageSize {
		return 0
	}
	tape := &o.tape
	switch {
	case len(tape.chunks) == 0:
		if a.page.room() < size {
			a.leavePage()
			a.page = a.budget.recycler.newPage()
		}
		return min(a.page.room(), max(size, smallestChunk))
	case tape.last() == &tape.first:
		has := cap(tape.first.data)
		missing := size - (has - len(tape.first.data))
		if missing <= a.page.room() {
			return min(a.page.room(), max(missing, has))
		}
	}
	return 0
}

// leavePage ends the use of the page that small transactions are put into.
func (a *Assembler) leavePage() {
	if a.page != nil {
		a.page.leave(&a.budget.recycler)
		a.page = nil
	}
}

// largest is the open transaction with most memory on its tape, or nil.
func (a *Assembler) largest() *assembly {
	var largest *assembly
	consider := func(o *assembly) {
		switch {
		case o.tape.memory == 0:
		case largest == nil,
			o.tape.memory > largest.tape.memory,
			o.tape.memory == largest.tape.memory && o.XID < largest.XID: // whatever the map's order
			largest = o
		}
	}
	if a.plain.Transaction != nil {
		consider(&a.plain)
	}
	for _, stream := range a.streams {
		consider(stream)
	}
	return largest
}

// spill moves what a transaction has in memory to its file.
func (a *Assembler) spill(o *assembly) error {
	if err := a.openFile(o); err != nil {
		return err
	}
	o.open.lock()
	freed, err := o.tape.flush(a.budget)
	o.open.unlock()
	a.budget.charge(-freed)
	return spoolFault(o, err)
}

func (a *Assembler) openFile(o *assembly) error {
	if o.tape.file != nil {
		return nil
	}
	file, err := a.spool()
	if err != nil {
		return spoolFault(o, err)
	}
	o.open.lock()
	o.tape.file = file
	o.open.unlock()
	return nil
}

func spoolFault(o *assembly, err error) error {
	if err != nil {
		return fmt.Errorf("spool transaction %d: %w", o.XID, err)
	}
	return nil
}

// rollBack takes back what one subtransaction of a stream has done.
func (a *Assembler) rollBack(stream *assembly, subxid uint32) error {
	begin, found := stream.unmark(subxid)
	if !found {
		return nil
	}
	freed, err := stream.cut(begin, a.budget)
	a.budget.charge(-freed)
	if err != nil {
		return spoolFault(stream, err)
	}
	a.catalog.cut(stream.overlay, begin.overlay)
	a.account(stream)
	if stream.open != nil {
		a.follow.Arrived(stream.open)
	}
	return nil
}

// complete turns an open transaction into a ready one.
func (a *Assembler) complete(o *assembly) *Transaction {
	tape := &o.tape
	if invariant.Enabled {
		size := tape.stored
		for _, c := range tape.chunks {
			size += int64(len(c.data))
		}
		invariant.Check(size == tape.size, "a tape of %d bytes holds %d", tape.size, size)
	}
	o.overlay, o.marks, o.markOf, o.relations.positions = nil, nil, nil, nil
	a.account(o)
	a.completed++
	o.Sequence = a.completed
	o.open.lock()
	if tape.first.page != nil {
		a.budget.charge(-a.page.trim(tape))
	}
	a.budget.complete(o.bookkeeping+tape.memory+o.open.buffered(), tape.files())
	o.open.end(ready)
	o.open.unlock()
	return o.Transaction
}

// forget drops a streamed transaction that has been rolled back or starts over.
func (a *Assembler) forget(stream *assembly) error {
	delete(a.streams, stream.XID)
	a.openStreams.Store(int64(len(a.streams)))
	return a.drop(stream)
}

// drop frees an open transaction and removes its file.
func (a *Assembler) drop(o *assembly) error {
	o.open.lock()
	freed := o.tape.free(&a.budget.recycler)
	err := o.tape.closeFile(a.budget)
	o.open.end(gone)
	o.open.unlock()
	a.budget.charge(-freed - o.bookkeeping)
	o.bookkeeping = 0
	if o.open != nil {
		a.follow.Ended(o.open, true)
	}
	return spoolFault(o, err)
}
