package apply

import (
	"time"

	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/apply/tablesync"
)

// reportPause is how often the log says how far a copy is.
const reportPause = 10 * time.Second

// copying puts a copy into the status, or with nil takes it out.
func (e *Engine) copying(progress *tablesync.Progress) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.copy = progress
}

// copyStatus sums up how far a copy is; nil where there is none.
func copyStatus(progress *tablesync.Progress) *state.Copy {
	if progress == nil {
		return nil
	}
	status := &state.Copy{}
	for _, table := range progress.Tables() {
		status.Tables++
		status.Rows += table.Rows
		status.Bytes += table.Bytes
		status.EstimatedRows += max(table.EstimatedRows, table.Rows, 0)
		switch {
		case table.Started.IsZero():
		case table.Err != nil:
			status.Failed++
		case !table.Finished.IsZero():
			status.Done++
		default:
			status.Running = append(status.Running, state.CopyTable{
				Table: printable(table.Schema + "." + table.Name),
				Rows:  table.Rows, Bytes: table.Bytes, EstimatedRows: max(table.EstimatedRows, 0), Parts: table.Parts, PartsDone: table.PartsDone,
			})
		}
		if !table.Started.IsZero() && (status.Since.IsZero() || table.Started.Before(status.Since)) {
			status.Since = table.Started
		}
	}
	return status
}

// reportCopy logs how far a copy is, until the returned function is called, which logs
// how it ended.
func (a *attempt) reportCopy(tables int, progress *tablesync.Progress) (ended func()) {
	began, stop, done := time.Now(), make(chan struct{}), make(chan struct{})
	a.log.Info("copying tables", zap.Int("tables", tables), zap.Int("jobs", a.options.TableJobs))
	go func() {
		defer close(done)
		ticker := time.NewTicker(reportPause)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				status := copyStatus(progress)
				a.log.Info("copying tables", zap.Int("done", status.Done), zap.Int("of", status.Tables), zap.Int64("rows", status.Rows),
					zap.Int64("estimated_rows", status.EstimatedRows), zap.Int64("bytes", status.Bytes))
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-done
		for _, table := range progress.Tables() {
			if table.Err == nil && !table.Finished.IsZero() {
				a.log.Info("copied a table", zap.String("table", printable(table.Schema+"."+table.Name)), zap.Int64("rows", table.Rows),
					zap.Int64("bytes", table.Bytes), zap.Float64("seconds", table.Finished.Sub(table.Started).Seconds()))
			}
		}
		status := copyStatus(progress)
		a.log.Info("copied tables", zap.Int("done", status.Done), zap.Int("of", status.Tables), zap.Int64("rows", status.Rows),
			zap.Int64("bytes", status.Bytes), zap.Float64("seconds", time.Since(began).Seconds()))
	}
}
