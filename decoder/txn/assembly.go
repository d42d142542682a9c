package txn

// assembly is a transaction that is still arriving, with what is needed only
// until it is complete.
type assembly struct {
	*Transaction

	// overlay of a streamed transaction; nil in others.
	overlay *overlay
	// marks say where each subtransaction of a streamed transaction begins, in
	// the order of their beginnings; markOf finds them by transaction id.
	marks  []mark
	markOf map[uint32]int
	subxid uint32 // of the last change, which has its mark

	tellAt int64 // size from which on there is something to tell of an ordinary one

	// The last table that was looked up, valid while the catalog has the same
	// version: rows of one table mostly come in runs.
	last struct {
		relation uint32
		index    uint32
		version  uint64
	}
}

// mark is the state of a transaction just before the first message of a
// subtransaction. Whatever comes later belongs to the subtransaction, to one
// inside it, or to one that ends with it, so rolling it back means to go back
// to the mark: subxact_info_add and stream_abort_internal in the server's
// worker.c do the same.
type mark struct {
	subxid    uint32
	records   int
	size      int64 // position on the tape
	overlay   int
	relations int
}

// note makes a mark before the first message of a subtransaction. It reports
// whether it did.
func (o *assembly) note(subxid uint32) bool {
	if subxid == o.subxid || subxid == o.XID {
		return false
	}
	o.subxid = subxid
	if _, found := o.markOf[subxid]; found {
		return false
	}
	if o.markOf == nil {
		o.markOf = map[uint32]int{}
	}
	o.markOf[subxid] = len(o.marks)
	o.marks = append(o.marks, mark{
		subxid:    subxid,
		records:   o.tape.count,
		size:      o.tape.size,
		overlay:   len(o.overlay.entries),
		relations: len(o.relations.relations),
	})
	return true
}

// unmark removes and returns the mark of a subtransaction, and all later marks.
func (o *assembly) unmark(subxid uint32) (mark, bool) {
	index, found := o.markOf[subxid]
	if !found {
		return mark{}, false
	}
	first := o.marks[index]
	for _, later := range o.marks[index:] {
		delete(o.markOf, later.subxid)
	}
	o.marks = o.marks[:index]
	o.subxid = 0
	return first, true
}

// cut goes back to a mark and returns the memory that is free now. After an error
// it has gone back less far.
func (o *assembly) cut(begin mark, b *Budget) (freed int64, err error) {
	o.open.lock()
	defer o.open.unlock()
	freed, err = o.tape.cut(begin.size, begin.records, b)
	o.open.cutDown()
	if err == nil {
		o.relations.cut(begin.relations)
	}
	return freed, err
}

// needs is about what the transaction takes beside the memory of its tape, in
// bytes.
func (o *assembly) needs() int64 {
	const transaction, entry, mark = 400, 8, 80
	size := transaction + entry*int64(cap(o.relations.relations)) + mark*int64(cap(o.marks)) + o.open.needs()
	if o.overlay != nil {
		size += o.overlay.size
	}
	return size
}
