-- The tables, views and indices of schema version 7, without their comments.
CREATE TABLE experiments (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  method TEXT NOT NULL,
  metric TEXT NOT NULL,
  smaller_is_better INTEGER NOT NULL
    CHECK (smaller_is_better IN (0, 1)),
  state TEXT NOT NULL
    CHECK (state IN ('active', 'completed', 'failed', 'stopped')),
  reason TEXT NOT NULL,
  created_at TEXT NOT NULL,
  ended_at TEXT,
  spec TEXT NOT NULL
    CHECK (json_valid(spec)),
  pick INTEGER
) STRICT;
CREATE INDEX experiments_by_name ON experiments (name);
CREATE TABLE trials (
  experiment INTEGER NOT NULL REFERENCES experiments (id),
  id INTEGER NOT NULL,
  kind TEXT NOT NULL
    CHECK (kind IN ('profile', 'submitted', 'search', 'confirm', 'reference', 'soak')),
  state TEXT NOT NULL
    CHECK (state IN ('running', 'succeeded', 'infeasible', 'failed', 'stopped')),
  reason TEXT NOT NULL,
  zero_stage INTEGER NOT NULL,
  assignment TEXT NOT NULL
    CHECK (json_valid(assignment)),
  ds_config TEXT NOT NULL
    CHECK (json_valid(ds_config)),
  asked_at TEXT NOT NULL,
  ended_at TEXT,
  confirms INTEGER
    CHECK ((confirms IS NOT NULL) = (kind IN ('confirm', 'reference', 'soak'))),
  PRIMARY KEY (experiment, id)
) STRICT;
CREATE TABLE attempts (
  experiment INTEGER NOT NULL,
  trial INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  state TEXT NOT NULL
    CHECK (state IN ('running', 'succeeded', 'infeasible', 'failed', 'stopped')),
  reason TEXT NOT NULL,
  log_dir TEXT NOT NULL,
  log_tail TEXT NOT NULL,
  profile TEXT
    CHECK (profile IS NULL OR json_valid(profile)),
  started_at TEXT NOT NULL,
  ended_at TEXT,
  PRIMARY KEY (experiment, trial, attempt),
  FOREIGN KEY (experiment, trial) REFERENCES trials (experiment, id)
) STRICT;
CREATE TABLE points (
  experiment INTEGER NOT NULL,
  trial INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  point INTEGER NOT NULL,
  micro_batch_size INTEGER NOT NULL,
  accumulation_steps INTEGER NOT NULL,
  FLOPS_per_gpu REAL,
  FLOPS_per_gpu_spread REAL,
  throughput REAL,
  throughput_spread REAL,
  latency REAL,
  latency_spread REAL,
  forward REAL,
  forward_spread REAL,
  backward REAL,
  backward_spread REAL,
  step REAL,
  step_spread REAL,
  peak_bytes REAL,
  peak_bytes_spread REAL,
  loss REAL,
  loss_spread REAL,
  measurement TEXT NOT NULL
    CHECK (json_valid(measurement)),
  measured_at TEXT NOT NULL,
  losses TEXT
    CHECK (losses IS NULL OR json_valid(losses)),
  rank_peak_bytes TEXT
    CHECK (rank_peak_bytes IS NULL OR json_valid(rank_peak_bytes)),
  PRIMARY KEY (experiment, trial, attempt, point),
  FOREIGN KEY (experiment, trial, attempt) REFERENCES attempts (experiment, trial, attempt)
) STRICT;
CREATE TABLE events (
  experiment INTEGER NOT NULL REFERENCES experiments (id),
  seq INTEGER NOT NULL CHECK (seq >= 1),
  kind TEXT NOT NULL
    CHECK (kind IN ('asked', 'attempt_started', 'measured', 'attempt_ended', 'told',
                    'search_ended', 'limits_raised', 'state_changed')),
  trial INTEGER
    CHECK ((trial IS NULL) = (kind IN ('search_ended', 'limits_raised', 'state_changed'))),
  payload TEXT NOT NULL
    CHECK (json_valid(payload)),
  at TEXT NOT NULL,
  PRIMARY KEY (experiment, seq),
  FOREIGN KEY (experiment, trial) REFERENCES trials (experiment, id)
) STRICT;
CREATE VIEW trial_metrics AS
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
SELECT t.experiment AS experiment,
       t.id AS trial,
       t.kind AS kind,
       t.confirms AS confirms,
       t.state AS state,
       t.zero_stage AS zero_stage,
       coalesce(r.micro_batch_size, t.ds_config ->> '$.train_micro_batch_size_per_gpu')
         AS micro_batch_size,
       coalesce(r.accumulation_steps, t.ds_config ->> '$.gradient_accumulation_steps')
         AS accumulation_steps,
       r.metric_value AS metric_value,
       r.metric_spread AS metric_spread,
       r.FLOPS_per_gpu / 1e9 AS gflops_per_gpu,
       r.throughput AS samples_per_s,
       r.latency AS latency_ms,
       r.forward AS forward_ms,
       r.backward AS backward_ms,
       r.step AS step_ms,
       r.peak_bytes / 1048576 AS peak_mib,
       r.loss AS loss,
       t.reason AS reason,
       iif(r.point IS NULL, t.assignment,
           json_replace(t.assignment, '$."/train_micro_batch_size_per_gpu"', r.micro_batch_size,
                        '$."/gradient_accumulation_steps"', r.accumulation_steps))
         AS assignment,
       iif(r.point IS NULL, t.ds_config,
           json_replace(t.ds_config, '$.train_micro_batch_size_per_gpu', r.micro_batch_size,
                        '$.gradient_accumulation_steps', r.accumulation_steps,
                        '$.train_batch_size', (t.ds_config ->> '$.train_batch_size')
                          / (t.ds_config ->> '$.train_micro_batch_size_per_gpu')
                          / (t.ds_config ->> '$.gradient_accumulation_steps')
                          * r.micro_batch_size * r.accumulation_steps))
         AS ds_config
FROM trials AS t
LEFT JOIN ranked AS r ON r.experiment = t.experiment AND r.trial = t.id AND r.place = 1;
CREATE VIEW step_losses AS
SELECT p.experiment AS experiment,
       p.trial AS trial,
       p.attempt AS attempt,
       p.point AS point,
       l.key + 1 AS step,
       l.value AS loss
FROM points AS p, json_each(p.losses) AS l;
CREATE VIEW best_trials AS
SELECT experiment,
       name,
       metric,
       trial,
       metric_value,
       metric_spread,
       zero_stage,
       micro_batch_size,
       accumulation_steps,
       gflops_per_gpu,
       samples_per_s,
       latency_ms,
       peak_mib,
       assignment,
       ds_config
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
