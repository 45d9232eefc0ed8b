-- The schema of a dsat database, whose version is PRAGMA user_version. docs/schema.md explains it
-- with example queries. The comments inside the statements stay in the file: `.schema` shows them.
--
-- `events` is the log; trials, attempts and points are derived from it and written in the same
-- transaction. JSON columns hold strict JSON. Times are UTC, ISO 8601, with milliseconds.

CREATE TABLE IF NOT EXISTS experiments (
  -- One tuning run.
  id INTEGER PRIMARY KEY,              -- 1, 2, 3 ...
  name TEXT NOT NULL,                  -- From the experiment file; need not be unique.
  method TEXT NOT NULL,                -- Search method: auto, asha, binary, random, grid, check.
  metric TEXT NOT NULL,                -- The metric that is optimized: FLOPS_per_gpu, latency ...
  smaller_is_better INTEGER NOT NULL   -- 1 if a smaller metric is better (latencies), else 0.
    CHECK (smaller_is_better IN (0, 1)),
  state TEXT NOT NULL                  -- active, completed, failed or stopped.
    CHECK (state IN ('active', 'completed', 'failed', 'stopped')),
  reason TEXT NOT NULL,                -- Why it failed or was stopped, '' otherwise.
  created_at TEXT NOT NULL,            -- When it was recorded.
  ended_at TEXT,                       -- When its state left active; NULL before.
  spec TEXT NOT NULL                   -- JSON: everything the search needs. Only limits change.
    CHECK (json_valid(spec)),
  pick INTEGER                         -- The trial to use; NULL until the experiment has ended.
) STRICT;

CREATE INDEX IF NOT EXISTS experiments_by_name ON experiments (name);

CREATE TABLE IF NOT EXISTS trials (
  -- One configuration tried by an experiment.
  experiment INTEGER NOT NULL REFERENCES experiments (id),  -- Its experiment.
  id INTEGER NOT NULL,                 -- 0, 1, 2 ... within the experiment.
  kind TEXT NOT NULL                   -- profile, submitted, search, confirm, reference, soak or larger.
    CHECK (kind IN ('profile', 'submitted', 'search', 'confirm', 'reference', 'soak', 'larger')),
  state TEXT NOT NULL                  -- running, succeeded, infeasible, failed or stopped.
    CHECK (state IN ('running', 'succeeded', 'infeasible', 'failed', 'stopped')),
  reason TEXT NOT NULL,                -- Why it ended that way, '' if it runs or succeeded.
  zero_stage INTEGER NOT NULL,         -- ZeRO stage of ds_config, 0 to 3.
  assignment TEXT NOT NULL             -- JSON: the keys set over the base config, by JSON pointer.
    CHECK (json_valid(assignment)),
  ds_config TEXT NOT NULL              -- JSON: the whole config that runs, batch sizes resolved.
    CHECK (json_valid(ds_config)),
  asked_at TEXT NOT NULL,              -- When the method asked for it.
  ended_at TEXT,                       -- When the method was told of it; NULL while it runs.
  confirms INTEGER                     -- The trial that one of the last four kinds runs again.
    CHECK ((confirms IS NOT NULL) = (kind IN ('confirm', 'reference', 'soak', 'larger'))),
  PRIMARY KEY (experiment, id)
) STRICT;

CREATE TABLE IF NOT EXISTS attempts (
  -- One launch of a trial. A crash is retried as a new attempt.
  experiment INTEGER NOT NULL,         -- Its experiment.
  trial INTEGER NOT NULL,              -- Its trial.
  attempt INTEGER NOT NULL,            -- 0, 1, 2 ... within the trial.
  state TEXT NOT NULL                  -- running, succeeded, infeasible, failed or stopped.
    CHECK (state IN ('running', 'succeeded', 'infeasible', 'failed', 'stopped')),
  reason TEXT NOT NULL,                -- Why it ended that way, '' if it runs or succeeded.
  log_dir TEXT NOT NULL,               -- Folder of its logs, '' if it ran outside dsat.
  log_tail TEXT NOT NULL,              -- Last lines of the log of the rank that mattered.
  profile TEXT                         -- JSON: the model profile it measured; NULL if it did not.
    CHECK (profile IS NULL OR json_valid(profile)),
  started_at TEXT NOT NULL,            -- When it was launched.
  ended_at TEXT,                       -- When it ended; NULL while it runs.
  PRIMARY KEY (experiment, trial, attempt),
  FOREIGN KEY (experiment, trial) REFERENCES trials (experiment, id)
) STRICT;

CREATE TABLE IF NOT EXISTS points (
  -- One measurement: a micro-batch size and accumulation count, measured by an attempt.
  -- Values are medians over the measured steps, spreads half their interquartile range.
  experiment INTEGER NOT NULL,         -- Its experiment.
  trial INTEGER NOT NULL,              -- Its trial.
  attempt INTEGER NOT NULL,            -- Its attempt.
  point INTEGER NOT NULL,              -- 0, 1, 2 ... within the attempt, in the order measured.
  micro_batch_size INTEGER NOT NULL,   -- Samples per rank and forward pass.
  accumulation_steps INTEGER NOT NULL, -- Micro-batches per optimizer step.
  FLOPS_per_gpu REAL,                  -- FLOP/s per rank.
  FLOPS_per_gpu_spread REAL,           -- FLOP/s per rank.
  throughput REAL,                     -- samples/s over all ranks.
  throughput_spread REAL,              -- samples/s over all ranks.
  latency REAL,                        -- ms per optimizer step, wall clock.
  latency_spread REAL,                 -- ms.
  forward REAL,                        -- ms per optimizer step in forward passes.
  forward_spread REAL,                 -- ms.
  backward REAL,                       -- ms per optimizer step in backward passes.
  backward_spread REAL,                -- ms.
  step REAL,                           -- ms per optimizer step in the update.
  step_spread REAL,                    -- ms.
  peak_bytes REAL,                     -- Highest device memory in use on any rank, bytes.
  peak_bytes_spread REAL,              -- bytes.
  loss REAL,                           -- Training loss of the last step, nats per token.
  loss_spread REAL,                    -- nats per token.
  measurement TEXT NOT NULL            -- JSON: every metric with value, spread and samples.
    CHECK (json_valid(measurement)),
  measured_at TEXT NOT NULL,           -- When the measurement arrived.
  losses TEXT                          -- JSON: the loss of each step; NULL if not known.
    CHECK (losses IS NULL OR json_valid(losses)),
  rank_peak_bytes TEXT                 -- JSON: device memory of each rank; NULL if not known.
    CHECK (rank_peak_bytes IS NULL OR json_valid(rank_peak_bytes)),
  PRIMARY KEY (experiment, trial, attempt, point),
  FOREIGN KEY (experiment, trial, attempt) REFERENCES attempts (experiment, trial, attempt)
) STRICT;

CREATE TABLE IF NOT EXISTS events (
  -- The log: an experiment's state is the fold of its events in the order of seq. Append-only.
  experiment INTEGER NOT NULL REFERENCES experiments (id),  -- Its experiment.
  seq INTEGER NOT NULL CHECK (seq >= 1),  -- 1, 2, 3 ... within the experiment.
  kind TEXT NOT NULL                   -- The kind of what happened.
    CHECK (kind IN ('asked', 'answered', 'attempt_started', 'measured', 'attempt_ended', 'told',
                    'search_ended', 'limits_raised', 'state_changed')),
  trial INTEGER                        -- The trial it is about; NULL if it is about none.
    CHECK (kind = 'answered' OR
           (trial IS NULL) = (kind IN ('search_ended', 'limits_raised', 'state_changed'))),
  payload TEXT NOT NULL                -- JSON: the event's data, by kind (docs/schema.md).
    CHECK (json_valid(payload)),
  at TEXT NOT NULL,                    -- When it was logged; no decision depends on it.
  PRIMARY KEY (experiment, seq),
  FOREIGN KEY (experiment, trial) REFERENCES trials (experiment, id)
) STRICT;

-- One row per trial in units for people: its best point of its last attempt, if it has one. The
-- tables have the batch sizes that a trial began with; it may have measured others, too.
CREATE VIEW IF NOT EXISTS trial_metrics AS
WITH
  measured AS (
    SELECT p.*,
           p.measurement ->> ('$.' || e.metric || '.value') AS metric_value,
           p.measurement ->> ('$.' || e.metric || '.spread') AS metric_spread,
           iif(e.smaller_is_better, 1, -1) AS sign
    FROM points AS p JOIN experiments AS e ON e.id = p.experiment
    WHERE p.attempt = (SELECT max(a.attempt) FROM attempts AS a
                       WHERE a.experiment = p.experiment AND a.trial = p.trial)
  ),
  ranked AS (
    SELECT *,
           row_number() OVER (PARTITION BY experiment, trial
                              ORDER BY sign * metric_value NULLS LAST, point) AS place
    FROM measured
  )
SELECT t.experiment AS experiment,     -- The experiment.
       t.id AS trial,                  -- The trial.
       t.kind AS kind,                 -- profile, submitted, search, confirm, reference, soak or larger.
       t.confirms AS confirms,         -- The trial that one of the last four kinds runs again.
       t.state AS state,               -- running, succeeded, infeasible, failed or stopped.
       t.zero_stage AS zero_stage,     -- ZeRO stage.
       coalesce(r.micro_batch_size, t.ds_config ->> '$.train_micro_batch_size_per_gpu')
         AS micro_batch_size,          -- Samples per rank and forward pass.
       coalesce(r.accumulation_steps, t.ds_config ->> '$.gradient_accumulation_steps')
         AS accumulation_steps,        -- Micro-batches per optimizer step.
       r.metric_value AS metric_value, -- The experiment's metric, in its own unit.
       r.metric_spread AS metric_spread,  -- Half its interquartile range, same unit.
       r.FLOPS_per_gpu / 1e9 AS gflops_per_gpu,  -- GFLOP/s per rank.
       r.throughput AS samples_per_s,  -- samples/s over all ranks.
       r.latency AS latency_ms,        -- ms per optimizer step.
       r.forward AS forward_ms,        -- ms per optimizer step in forward passes.
       r.backward AS backward_ms,      -- ms per optimizer step in backward passes.
       r.step AS step_ms,              -- ms per optimizer step in the update.
       r.peak_bytes / 1048576 AS peak_mib,  -- MiB, the highest on any rank.
       r.loss AS loss,                 -- nats per token.
       t.reason AS reason,             -- Why it ended that way, '' if it runs or succeeded.
       iif(r.point IS NULL, t.assignment,
           json_replace(t.assignment, '$."/train_micro_batch_size_per_gpu"', r.micro_batch_size,
                        '$."/gradient_accumulation_steps"', r.accumulation_steps))
         AS assignment,                -- JSON: the keys that it sets over the submitted config.
       iif(r.point IS NULL, t.ds_config,
           json_replace(t.ds_config, '$.train_micro_batch_size_per_gpu', r.micro_batch_size,
                        '$.gradient_accumulation_steps', r.accumulation_steps,
                        '$.train_batch_size', (t.ds_config ->> '$.train_batch_size')
                          / (t.ds_config ->> '$.train_micro_batch_size_per_gpu')
                          / (t.ds_config ->> '$.gradient_accumulation_steps')
                          * r.micro_batch_size * r.accumulation_steps))
         AS ds_config                  -- JSON: the config that was measured.
FROM trials AS t
LEFT JOIN ranked AS r ON r.experiment = t.experiment AND r.trial = t.id AND r.place = 1;

-- The losses of the optimizer steps, one row for each step that a trial has run.
CREATE VIEW IF NOT EXISTS step_losses AS
SELECT p.experiment AS experiment,     -- The experiment.
       p.trial AS trial,               -- The trial.
       p.attempt AS attempt,           -- The attempt.
       p.point AS point,               -- The point within the attempt.
       l.key + 1 AS step,              -- 1, 2, 3 ... optimizer steps since the model's start.
       l.value AS loss                 -- Over all ranks, nats per token; NULL if it is not finite.
FROM points AS p, json_each(p.losses) AS l;

-- The best trial of each experiment that has one: its pick, else the best by the metric, where
-- profiling trials and runs of an earlier configuration do not count and ties keep the first.
CREATE VIEW IF NOT EXISTS best_trials AS
SELECT experiment,                     -- The experiment.
       name,                           -- Its name.
       metric,                         -- The metric that is optimized.
       trial,                          -- The best trial.
       metric_value,                   -- Its value, in the metric's own unit.
       metric_spread,                  -- Half its interquartile range, same unit.
       zero_stage,                     -- Its ZeRO stage.
       micro_batch_size,               -- Its samples per rank and forward pass.
       accumulation_steps,             -- Its micro-batches per optimizer step.
       gflops_per_gpu,                 -- GFLOP/s per rank.
       samples_per_s,                  -- samples/s over all ranks.
       latency_ms,                     -- ms per optimizer step.
       peak_mib,                       -- MiB, the highest on any rank.
       assignment,                     -- JSON: the keys that it sets over the submitted config.
       ds_config                       -- JSON: the config that was measured.
FROM (
  SELECT m.*, e.name, e.metric,
         row_number() OVER (PARTITION BY m.experiment
                            ORDER BY m.trial IS NOT e.pick,
                                     iif(e.smaller_is_better, 1, -1) * m.metric_value, m.trial)
           AS place
  FROM trial_metrics AS m
  JOIN experiments AS e ON e.id = m.experiment
  WHERE m.state = 'succeeded' AND m.kind IN ('submitted', 'search')
    AND m.metric_value IS NOT NULL
)
WHERE place = 1;
