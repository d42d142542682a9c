package parallel

// keys says for each key which group holds it. Groups are numbered in the order in
// which they enter, and leave in that order, so nothing need be removed: a key whose
// group has left is as good as absent, and its place is taken again when the table is
// made anew. That costs no memory either while about as many keys are held as before.
//
// It is a hash table with linear probing, and the keys are its hashes: they have to be
// well mixed.
type keys struct {
	slots, spare []slot // a power of two; spare is what slots was before
	used         int    // slots that are not empty
}

// slot is a key and its group; group 0 stands for an empty one.
type slot struct{ key, group uint64 }

// leastSlots is how many a table begins with.
const leastSlots = 1 << 10

// holder is the last group that has taken the key, which may have left; 0 for none.
func (k *keys) holder(key uint64) uint64 {
	if len(k.slots) == 0 {
		return 0
	}
	return k.slots[k.find(key)].group
}

// find returns the place of the key, or the empty one where it belongs.
func (k *keys) find(key uint64) int {
	mask := uint64(len(k.slots) - 1)
	i := key & mask
	for k.slots[i].group != 0 && k.slots[i].key != key {
		i = (i + 1) & mask
	}
	return int(i)
}

// take gives the keys to a group. Groups before first have left.
func (k *keys) take(taken []uint64, group, first uint64) {
	if 2*(k.used+len(taken)) > len(k.slots) {
		k.renew(len(taken), first)
	}
	for _, key := range taken {
		s := &k.slots[k.find(key)]
		if s.group == 0 {
			k.used++
		}
		*s = slot{key, group}
	}
}

// renew makes the table anew, without the keys of groups before first and with room
// for more: at most half of it is full, and a quarter right after this, so that the
// next time is as far away as the effort is large.
func (k *keys) renew(more int, first uint64) {
	held := more
	for _, s := range k.slots {
		if s.group >= first {
			held++
		}
	}
	size := max(leastSlots, len(k.slots))
	for size < 4*held {
		size *= 2
	}
	old := k.slots
	if len(k.spare) == size {
		k.slots = k.spare
		clear(k.slots)
	} else {
		k.slots = make([]slot, size)
	}
	k.spare, k.used = old, 0
	for _, s := range old {
		if s.group >= first {
			k.slots[k.find(s.key)] = s
			k.used++
		}
	}
}
