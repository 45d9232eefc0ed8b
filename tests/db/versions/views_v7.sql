-- The views of schema version 7 that differ from those of version 6, whose tables are its own, too.
DROP VIEW best_trials;
DROP VIEW trial_metrics;
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
