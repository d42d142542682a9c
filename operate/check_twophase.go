package operate

import (
	"pgapply/apply/state"
)

// checkTwoPhase looks for room for what the publisher prepares, where that will be
// prepared on the target too, and at what is prepared there already.
func checkTwoPhase(f *facts) []Finding {
	const subject = "two-phase"
	t, p := f.target, f.publisher
	if sub := t.subscription; sub == nil || sub.SlotState == state.SlotCreating {
		if err := f.ends().MayPrepare(t.prepared); err != nil {
			return failed(subject, err)
		}
	}
	if !f.ends().TwoPhase(p.slot) {
		if p.slot != nil && p.slot.TwoPhase {
			if err := f.ends().MayTurnOff(t.prepared, t.decided); err != nil {
				return failed(subject, err)
			}
		}
		return nil
	}
	const remedy = "raise max_prepared_transactions on the target, to no less than the publisher's, and restart it"
	// Those of the publisher's that the target holds have their place.
	coming, free := max(0, p.prepared-len(t.prepared)), t.room.MaxPrepared-t.room.InPrepared
	switch {
	case t.room.MaxPrepared == 0:
		return failure(subject, remedy, "max_prepared_transactions is 0 on the target: nothing can be prepared there")
	case coming > free:
		return warning(subject, remedy, "%s may come that the publisher has prepared now, and max_prepared_transactions leaves %d of %d on the target",
			counted(int64(coming), "transaction"), max(0, free), t.room.MaxPrepared)
	}
	return ok(subject, "max_prepared_transactions leaves %d of %d on the target", free, t.room.MaxPrepared)
}
