// SPDX-License-Identifier: Apache-2.0
//
// Mistakes of a host that were silent once and spoiled what others find.

use kvfolio::*;

fn group() -> GroupSpec {
    GroupSpec {
        head_dim_k: 4,
        head_dim_v: 4,
        block_size: 4,
        num_blocks: 16,
        ..GroupSpec::default()
    }
}

fn say(cache: &mut Cache, prompt: &[i32]) -> Sequence {
    let opened = cache.open(prompt, &Default::default()).unwrap();
    let mut step = cache.begin_step().unwrap();
    step.append(opened.sequence, &prompt[opened.cached_tokens as usize..]).unwrap();
    step.finish().unwrap();
    opened.sequence
}

/// A cache with storage, and a child that needs a copy for its next token.
fn with_a_copy(options: &Options) -> (Cache, Sequence) {
    let mut cache = Cache::with_storage(Storage::new(&[group()]).unwrap(), options).unwrap();
    let parent = say(&mut cache, &[1, 2, 3, 4, 5, 6]);
    let child = cache.fork(parent, &Default::default()).unwrap();
    (cache, child)
}

fn refused<T: std::fmt::Debug>(result: Result<T>, text: &str) {
    match result {
        Err(Error::FailedPrecondition(why)) => assert!(why.contains(text), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn copies_that_did_not_run_are_refused_and_the_step_is_rolled_back() -> Result<()> {
    let (mut cache, child) = with_a_copy(&Options::default());
    for by_commit in [true, false] {
        let mut step = cache.begin_step()?;
        step.append(child, &[7])?;
        let ended = if by_commit { step.commit() } else { step.finish() };
        refused(ended, "1 copy that has not run");
        assert_eq!(cache.info(child)?.length, 6); // a step that is not ended rolls back
    }
    let mut step = cache.begin_step()?;
    step.append(child, &[7])?;
    step.run_copies()?;
    step.finish()?;
    assert_eq!(cache.info(child)?.length, 7);
    cache.check_invariants()
}

#[test]
fn host_that_copies_itself_is_not_asked() -> Result<()> {
    let (mut cache, child) = with_a_copy(&Options { copies_by_host: true, ..Options::default() });
    assert!(cache.options().copies_by_host);
    let mut step = cache.begin_step()?;
    step.append(child, &[7])?;
    step.finish()?;
    assert_eq!(cache.info(child)?.length, 7);
    Ok(())
}

#[test]
fn sequence_that_the_plan_lacks_is_not_committed() -> Result<()> {
    let mut cache = Cache::new(&[group()], &Options::default())?;
    let early = cache.open(&[], &Default::default())?.sequence;
    let late = cache.open(&[], &Default::default())?.sequence;
    let mut step = cache.begin_step()?;
    step.append(early, &[1, 2])?;
    step.plan(&Default::default())?;
    step.append(late, &[3])?;
    refused(step.commit(), "1 of the 2 sequences");
    let mut step = cache.begin_step()?;
    step.append(early, &[1, 2])?;
    step.plan(&Default::default())?;
    step.append(late, &[3])?;
    step.undo(late)?; // who left is not missed
    step.finish()?;
    assert_eq!((cache.info(early)?.length, cache.info(late)?.length), (2, 0));
    cache.check_invariants()
}

#[test]
fn plan_with_a_sequence_that_left_since_is_not_committed() -> Result<()> {
    let mut cache = Cache::new(&[group()], &Options::default())?;
    for by_commit in [true, false] {
        let stays = cache.open(&[], &Default::default())?.sequence;
        let leaves = cache.open(&[], &Default::default())?.sequence;
        let mut step = cache.begin_step()?;
        step.append(stays, &[1, 2])?;
        step.append(leaves, &[3])?;
        step.plan(&Default::default())?;
        step.undo(leaves)?;
        let ended = if by_commit { step.commit() } else { step.finish() };
        refused(ended, "1 sequence that was taken out since");
        assert_eq!(cache.info(stays)?.length, 0); // all of the step is rolled back
        let mut step = cache.begin_step()?;
        step.append(stays, &[1, 2])?;
        step.append(leaves, &[3])?;
        step.plan(&Default::default())?;
        step.cancel(leaves)?;
        step.plan(&Default::default())?;
        step.finish()?;
        assert_eq!(cache.info(stays)?.length, 2);
    }
    cache.check_invariants()
}

#[test]
fn whole_prompt_behind_a_hit_is_refused() -> Result<()> {
    let mut cache = Cache::new(&[group()], &Options::default())?;
    let prompt: Vec<i32> = (1..=10).collect();
    let first = say(&mut cache, &prompt);
    cache.close(first)?;
    let opened = cache.open(&prompt, &Default::default())?;
    assert_eq!(opened.cached_tokens, 9);
    let mut step = cache.begin_step()?;
    match step.append(opened.sequence, &prompt) {
        Err(Error::InvalidArgument(why)) => {
            assert!(why.contains("the 9 that it has of its prompt of 10"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    step.append(opened.sequence, &prompt[9..])?;
    step.finish()?;
    Ok(())
}

#[test]
fn rest_of_a_prompt_that_repeats_itself_is_taken_with_its_drafts() -> Result<()> {
    let mut cache = Cache::new(&[group()], &Options::default())?;
    let prompt = [7, 7, 7, 7];
    let first = say(&mut cache, &prompt);
    cache.close(first)?;
    let opened = cache.open(&prompt, &Default::default())?;
    assert_eq!(opened.cached_tokens, 3);
    let mut step = cache.begin_step()?;
    step.append_draft(opened.sequence, &prompt, 3)?; // the rest and three drafts
    step.finish()?;
    cache.accept(opened.sequence, 1)?;
    assert_eq!(cache.info(opened.sequence)?.length, 5);
    cache.check_invariants()
}
