package main

import "runtime/debug"

// freshMemory is more than any contender takes beside what the servers share.
const freshMemory = 512 << 20

// touchMemory takes memory from the machine and gives it back, so that there is some to
// be had at once. A virtual machine's host takes back what is free for a few seconds, and
// then every page that a contender uses first has to be fetched from it again: that cost
// up to half of a second of CPU time in some drains, and nothing in others.
func touchMemory() {
	const page = 4 << 10
	memory := make([]byte, freshMemory)
	for i := 0; i < len(memory); i += page {
		memory[i] = 1
	}
	debug.FreeOSMemory()
}
