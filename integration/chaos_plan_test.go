package integration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// plan is a round of chaos as its seed has drawn it: how pgapply is started, and what
// befalls it, the two servers and the links to them. Everything is drawn ahead, so that
// one seed is one plan; what meets what within a run is up to the machine.
type plan struct {
	seed    uint64
	flags   []string
	early   bool // the load begins before pgapply does, which copies tables under it
	far     bool // the target is far away
	hasty   bool // pgapply gives up a silent target soon
	writers int
	steps   []step
}

// step is one thing that happens.
type step struct {
	// heals: first pgapply has to have applied something since the last step.
	heals bool
	// after is how long the step waits then.
	after time.Duration
	fault *fault
	// script is what befalls a link, in the language of faultnet; of others it is empty.
	script string
	// lasts is how long it takes, where it takes its time.
	lasts time.Duration
}

func (s step) String() string {
	var text strings.Builder
	if s.heals {
		text.WriteString("once it applies again, and ")
	}
	fmt.Fprintf(&text, "after %s: %s", s.after, s.fault.name)
	if s.script != "" {
		fmt.Fprintf(&text, " { %s }", strings.ReplaceAll(s.script, "\n", "; "))
	}
	if s.lasts > 0 {
		fmt.Fprintf(&text, " for %s", s.lasts)
	}
	return text.String()
}

// drawPlan draws the round of a seed, with so many steps, for servers of a major.
func drawPlan(seed uint64, steps, major int) plan {
	random := rand.New(rand.NewPCG(seed, 0))
	one := func(in int) bool { return random.IntN(in) == 0 }
	p := plan{seed: seed, writers: 2 + random.IntN(3), early: one(4), far: seed%3 == 0}
	twoPhase := one(2) && major >= 15
	p.flags = append(p.flags, fmt.Sprintf("--workers=%d", 1+random.IntN(8)), "--streaming="+pick(random, "off", "on", "parallel", "parallel"))
	for _, option := range []struct {
		wanted bool
		flag   string
	}{
		{twoPhase, "--two-phase"},
		{one(2), "--binary"},
		{one(4), "--max-group-transactions=1"},
		{one(4), "--max-group-rows=100"},
		{one(4), "--max-batch=0"},
		{one(3), "--memory-limit=1MiB"},
		{one(4), "--synchronous-commit=on"},
		{one(2), "--auto-refresh"},
		{one(4), "--progress=table"},
	} {
		if option.wanted {
			p.flags = append(p.flags, option.flag)
		}
	}
	all := faults()
	total := 0
	for _, f := range all {
		total += f.weight
	}
	for range steps {
		s := step{heals: one(2), after: time.Duration(random.ExpFloat64()*250) * time.Millisecond}
		at := random.IntN(total)
		for i := range all {
			if at -= all[i].weight; at < 0 {
				s.fault = &all[i]
				break
			}
		}
		if s.fault.draw != nil {
			s.fault.draw(random, &s)
		}
		p.steps = append(p.steps, s)
	}
	if p.hasty = one(2); p.hasty {
		p.flags = append(p.flags, "--target-timeout=1s")
	}
	return p
}

func pick(random *rand.Rand, from ...string) string { return from[random.IntN(len(from))] }

// some draws a time around 600 ms.
func some(random *rand.Rand) time.Duration {
	return time.Duration(100+random.IntN(1000)) * time.Millisecond
}

func (p plan) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "seed %d: %d writers, pgapply run %s", p.seed, p.writers, strings.Join(p.flags, " "))
	if p.early {
		text.WriteString(", started under load")
	}
	if p.far {
		fmt.Fprintf(&text, ", with a target that is %v away", farAway)
	}
	for i, s := range p.steps {
		fmt.Fprintf(&text, "\n  %d. %s", i+1, s)
	}
	return text.String()
}

// One seed is one plan, and many seeds are all there is.
func TestChaosPlan(t *testing.T) {
	met := map[string]bool{}
	for seed := range uint64(200) {
		p := drawPlan(seed, 5, pgtest.Major(t))
		require.Equal(t, p.String(), drawPlan(seed, 5, pgtest.Major(t)).String())
		for _, s := range p.steps {
			met[s.fault.name] = true
		}
	}
	for _, f := range faults() {
		require.True(t, met[f.name], f.name)
	}
}
