package apply

import (
	"os"
	"runtime/debug"
)

// collectorPercent is by how much the heap may grow before it is collected. Next to the
// changes in flight, which are used again and bounded by themselves, little lives for
// long: with Go's 100 the collector takes a tenth of the time that rows take.
const collectorPercent = 400

// collectorMargin is what a process takes beside the changes in flight, in bytes.
const collectorMargin = 96 << 20

// TuneCollector sets the garbage collector for a process that does nothing but run an
// engine with this memory limit. What GOGC or GOMEMLIMIT in the environment say is left
// alone. It concerns the whole process, which is why the engine does not do it.
func TuneCollector(memoryLimit int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectorPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit + collectorMargin)
	}
}
