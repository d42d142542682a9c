package faultnet

import (
	"fmt"
	"strings"
	"time"
)

// Verb is what a fault does.
type Verb string

// The verbs. The first three befall the connection whose statement set the fault off,
// or all that are open where the action says so. The others befall the proxy, for a
// time or until they are ended.
const (
	Cut     Verb = "cut"     // both sides see the end of the connection
	Reset   Verb = "reset"   // the client's side, or both, see it reset
	Mute    Verb = "mute"    // nothing from the server reaches the client any more, nor does its end
	Stall   Verb = "stall"   // hold back what one side, or both, send
	Resume  Verb = "resume"  // end a stall
	Delay   Verb = "delay"   // hold back everything by a time
	Trickle Verb = "trickle" // forward in small pieces, so many bytes a second
	Refuse  Verb = "refuse"  // hang up on new connections
	Accept  Verb = "accept"  // end a refuse
)

// Action is one thing that a fault does.
type Action struct {
	Verb  Verb
	All   bool          // of Cut, Reset, Mute: every open connection
	From  Direction     // of Stall, Resume, Trickle: whose bytes
	By    time.Duration // of Delay
	Rate  int           // of Trickle: bytes a second
	Lasts time.Duration // of Stall, Delay, Trickle, Refuse: how long; zero is until it is ended
}

// String is the action in a script.
func (a Action) String() string {
	words := []string{string(a.Verb)}
	switch a.Verb {
	case Cut, Reset, Mute:
		if a.All {
			words = append(words, "all")
		}
	case Stall, Resume:
		words = append(words, a.From.String())
	case Trickle:
		words = append(words, a.From.String(), fmt.Sprint(a.Rate), "B/s")
	case Delay:
		words = append(words, a.By.String())
	case Refuse, Accept:
	}
	if a.Lasts > 0 {
		words = append(words, "for", a.Lasts.String())
	}
	return strings.Join(words, " ")
}

// onConnection tells whether the action befalls the connection whose statement set it
// off.
func (a Action) onConnection() bool {
	switch a.Verb {
	case Cut, Reset, Mute:
		return !a.All
	case Stall, Resume, Delay, Trickle, Refuse, Accept:
	}
	return false
}

// ends tells whether the connection is gone after the action.
func (a Action) ends() bool { return a.onConnection() && a.Verb != Mute }

// Do does what needs no connection of its own; of Cut, Reset and Mute that is what
// befalls all.
func (p *Proxy) Do(a Action) {
	switch a.Verb {
	case Cut:
		p.each((*session).cut)
	case Reset:
		p.each((*session).reset)
	case Mute:
		p.each((*session).mute)
	case Stall:
		for _, g := range p.gates(a.From) {
			p.lasting(a.Lasts, g.stall())
		}
	case Resume:
		p.Resume(a.From)
	case Delay:
		p.lasting(a.Lasts, p.delay.set(int64(a.By)))
	case Trickle:
		for _, rate := range p.rates(a.From) {
			p.lasting(a.Lasts, rate.set(int64(a.Rate)))
		}
	case Refuse:
		p.lasting(a.Lasts, p.refusing.set(1))
	case Accept:
		p.Accept()
	}
}

// lasting calls end after some time, if that is not zero and the proxy lives.
func (p *Proxy) lasting(time time.Duration, end func()) {
	if time == 0 {
		return
	}
	p.running.Go(func() {
		if rests(time, p.closed) {
			end()
		}
	})
}

// Calm ends everything that lasts, and forgets the faults that have not happened. What
// befell a connection stays.
func (p *Proxy) Calm() {
	p.Disarm()
	p.Resume(BothWays)
	p.Delay(0)
	for _, rate := range p.rates(BothWays) {
		rate.set(0)
	}
	p.Accept()
}
