package apply

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"pgapply/apply/target"
	"pgapply/internal/source"
)

// preparedPrefix begins the names of the subscription's prepared transactions.
func (a *attempt) preparedPrefix() string {
	return target.PreparedPrefix(a.options.Name, a.control.target.DatabaseOID)
}

// settleTwoPhase makes a two-phase slot an ordinary one where the options say so. The
// other way is part of starting the stream.
func (a *attempt) settleTwoPhase(ctx context.Context, slot *source.Slot) error {
	if a.publisher.Version() < oldestTwoPhase {
		return nil
	}
	if a.options.TwoPhase && !slot.TwoPhase {
		prepared, err := a.control.store.Prepared(ctx, a.preparedPrefix())
		if err != nil {
			return TargetError(err)
		}
		return a.ends().MayTurnOn(slot, prepared)
	}
	if a.options.TwoPhase || !slot.TwoPhase {
		return nil
	}
	if a.publisher.Version() < oldestAlter {
		if !a.engine.streamed {
			a.log.Warn("the slot remains a two-phase one, which publishers before 18 cannot take back: what they prepare is prepared on the target all the same",
				zap.String("slot", slot.Name))
		}
		return nil
	}
	prepared, err := a.control.store.Prepared(ctx, a.preparedPrefix())
	if err != nil {
		return TargetError(err)
	}
	decided, err := a.control.store.CommittedByHand(ctx)
	if err != nil {
		return TargetError(err)
	}
	if err := a.ends().MayTurnOff(prepared, decided); err != nil {
		return err
	}
	if err := a.wait(ctx, func() (string, error) { return a.slotUser(ctx, slot.Name) }); err != nil {
		return sourceErrorOrRefused(err)
	}
	if err := a.publisher.SetTwoPhase(ctx, slot.Name, false); err != nil {
		return SourceError(err)
	}
	a.log.Info("the slot is no longer a two-phase one", zap.String("slot", slot.Name))
	return nil
}

// settleFailover makes standbys of the publisher keep the slot, or not, as the options
// say.
func (a *attempt) settleFailover(ctx context.Context, slot *source.Slot) error {
	if a.options.Failover == slot.Failover || a.publisher.Version() < oldestFailover {
		return nil
	}
	if err := a.wait(ctx, func() (string, error) { return a.slotUser(ctx, slot.Name) }); err != nil {
		return sourceErrorOrRefused(err)
	}
	if err := a.publisher.SetFailover(ctx, slot.Name, a.options.Failover); err != nil {
		return SourceError(err)
	}
	if a.options.Failover {
		a.log.Info("standbys of the publisher keep the slot from now on", zap.String("slot", slot.Name))
	} else {
		a.log.Warn("standbys of the publisher do not keep the slot any more, since --failover was not given", zap.String("slot", slot.Name))
	}
	return nil
}

// slotUser says who uses a slot, in words; empty for nobody.
func (a *attempt) slotUser(ctx context.Context, slot string) (string, error) {
	holder, err := a.publisher.SlotHolder(ctx, slot)
	if err != nil || holder == nil {
		return "", err
	}
	return fmt.Sprintf("replication slot %q is in use by %s", slot, holder), nil
}
