/** Every statement that writes `workflow_steps`: what each step of a Workflow instance has done. */

/** Which step of which instance. */
export interface StepOf {
  workflow: string;
  instance: string;
  /** Its place in the order of steps. */
  position: number;
  /** What a person reads. */
  name: string;
}

export interface StepRow {
  position: number;
  name: string;
  started_at: number;
  updated_at: number;
  progress: string;
}

/** Keeps what a step has done so far. Stands in the batch of the work itself, so that both are done or neither. */
export function putStep(db: D1Database, step: StepOf, progress: object, at: number): D1PreparedStatement {
  return db
    .prepare(
      `INSERT INTO workflow_steps (workflow, instance_id, position, name, started_at, updated_at, progress)
       VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)
       ON CONFLICT (workflow, instance_id, position) DO UPDATE SET updated_at = ?5, progress = ?6`,
    )
    .bind(step.workflow, step.instance, step.position, step.name, at, JSON.stringify(progress));
}

/**
 * Begins a step: answers `progress`, or what an earlier run of the same step had kept, from which this one goes on.
 */
export function beginStep(db: D1Database, step: StepOf, progress: object, at: number): D1PreparedStatement {
  return db
    .prepare(
      `INSERT INTO workflow_steps (workflow, instance_id, position, name, started_at, updated_at, progress)
       VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)
       ON CONFLICT (workflow, instance_id, position) DO UPDATE SET updated_at = ?5 RETURNING progress`,
    )
    .bind(step.workflow, step.instance, step.position, step.name, at, JSON.stringify(progress));
}

/** The steps of an instance, in their order. */
export function listSteps(db: D1Database, workflow: string, instance: string): D1PreparedStatement {
  return db
    .prepare(
      `SELECT position, name, started_at, updated_at, progress FROM workflow_steps
       WHERE workflow = ?1 AND instance_id = ?2 ORDER BY position`,
    )
    .bind(workflow, instance);
}

/** Deletes steps that were last written before `before`, a bounded number a call. */
export function forgetSteps(db: D1Database, before: number, limit: number): D1PreparedStatement {
  return db
    .prepare(
      `DELETE FROM workflow_steps WHERE (workflow, instance_id, position) IN (
         SELECT workflow, instance_id, position FROM workflow_steps WHERE updated_at < ?1 ORDER BY updated_at LIMIT ?2)`,
    )
    .bind(before, limit);
}
