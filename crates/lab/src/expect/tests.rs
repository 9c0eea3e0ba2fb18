//! Tests of verdicts.

use super::*;
use crate::rows::tests::rows;

fn verdict(made: Option<Expectation>) -> Judgement {
    made.unwrap().verdict
}

/// A measure with this direction.
fn measure(better: Better) -> Measure {
    Measure { better, ..Measure::CPU_US }
}

#[test]
fn never_missing_and_ties() {
    let rows = rows(&[
        ("a", &[Some(1.0)]),
        ("near a", &[Some(1.01)]),
        ("b", &[Some(2.0)]),
        ("n", &[None, None]),
        ("absent", &[]),
    ]);
    let measure = Measure { can_be_never: true, ..Measure::CPU_US };
    let judge = rows.by(&measure);
    let beats = |of: &str, others: &[&str]| verdict(judge.beats("c", of, others, 1.0));
    assert_eq!(beats("a", &["b", "n", "absent"]), Judgement::Met);
    assert_eq!(beats("near a", &["a", "b"]), Judgement::Equal);
    assert_eq!(beats("a", &["near a", "b"]), Judgement::Equal, "a tie");
    assert_eq!(beats("b", &["a", "n"]), Judgement::Failed);
    assert_eq!(beats("n", &["a"]), Judgement::Failed);
    assert_eq!(beats("a", &["absent"]), Judgement::NotMeasured);
    assert!(judge.beats("c", "a", &["gone"], 1.0).is_none());
    let same = |of, other| verdict(judge.same("c", of, other));
    assert_eq!((same("a", "near a"), same("b", "a")), (Judgement::Met, Judgement::Failed));
    let twice = |of| verdict(judge.beats("c", of, &["b"], 2.0));
    assert_eq!((twice("a"), twice("near a")), (Judgement::Met, Judgement::Failed));
    assert_eq!(verdict(judge.at_most("c", "b", 1.5)), Judgement::Failed);
    assert_eq!(verdict(judge.at_most("c", "n", 1.5)), Judgement::Failed);
    assert_eq!(verdict(judge.at_most("c", "gone", 1.5)), Judgement::NotMeasured);
    assert_eq!(verdict(judge.at_least("c", "b", 1.5)), Judgement::Met);
    let limits = [judge.at_most("c", "near a", 1.0), judge.at_least("c", "b", 2.1)];
    assert_eq!(limits.map(verdict), [Judgement::Failed, Judgement::Failed]);
    assert_eq!(verdict(judge.near("c", "b", 1.9, "a")), Judgement::Failed);
    assert_eq!(verdict(judge.within("gone", "c", "a", 2.0)), Judgement::NotMeasured);
}

/// Seen: a table of `never`, for a measure that older samples did not have. Cause: a sample without
/// a figure counted as one that never ended, and as beaten. Cure: a measure says whether that can
/// happen.
#[test]
fn measure_not_taken_is_not_missed() {
    let rows = rows(&[("a", &[Some(1.0)]), ("old", &[None, None])]);
    let judge = rows.by(&Measure::CPU_US);
    let made = judge.beats("c", "a", &["old"], 1.0).unwrap();
    assert_eq!(
        (made.verdict, &*made.because),
        (Judgement::NotMeasured, "1.00 µs; old not measured")
    );
    assert_eq!(verdict(judge.at_most("c", "old", 1.0)), Judgement::NotMeasured);
}

/// Seen: "about equal" for any two figures that differed by less than 8 %, however certain the
/// difference, and "target missed" for an uncertain one.
#[test]
fn the_interval_decides() {
    let around =
        |middle: f64, by: f64| [-1.0, -0.5, 0.0, 0.5, 1.0].map(|at| Some(middle + at * by));
    let rows = rows(&[
        ("a", &around(1.0, 0.01)),
        ("sure", &around(1.05, 0.01)),
        ("unsure", &around(1.2, 0.5)),
        ("twice", &around(2.0, 0.2)),
        ("near", &around(1.05, 0.045)),
    ]);
    let judge = rows.by(&Measure::CPU_US);
    let lead = |of, by, times| judge.beats("c", of, &[by], times).unwrap();
    assert_eq!(lead("a", "sure", 1.0).words(), "as expected");
    assert_eq!(lead("sure", "a", 1.0).words(), "target missed");
    assert_eq!(lead("a", "unsure", 1.0).words(), "about equal");
    assert_eq!(lead("a", "twice", 1.5).words(), "as expected");
    assert_eq!(lead("a", "twice", 2.0).words(), "about equal");
    assert_eq!(lead("a", "twice", 3.0).words(), "target missed");
    let limit = |most| judge.at_most("c", "twice", most).unwrap().words();
    assert_eq!([2.3, 2.0, 1.7].map(limit), ["as expected", "about equal", "target missed"]);
    let same = |other| judge.same("c", "a", other).unwrap().words();
    assert_eq!(
        ["sure", "unsure", "near", "twice"].map(same),
        ["as expected", "about equal", "about equal", "target missed"]
    );
    let because = lead("a", "twice", 1.5).because;
    assert!(because.starts_with("1.00 µs; twice 2.00 µs: 2.00× (1.80–2.20;"), "{because}");
}

/// Seen: "as expected" from one sample.
#[test]
fn few_samples_are_sure_of_nothing() {
    let words = |samples: usize, measure: &Measure| {
        let [fast, slow] = [1.0, 2.0].map(|figure| vec![Some(figure); samples]);
        let rows = rows(&[("a", &fast), ("b", &slow)]);
        let judge = rows.by(measure);
        let made = [
            judge.beats("c", "a", &["b"], 1.0),
            judge.beats("c", "b", &["a"], 1.0),
            judge.at_most("c", "a", 1.0),
            judge.same("c", "a", "b"),
        ];
        made.map(|made| made.unwrap().words())
    };
    for samples in 1..SAMPLES_MIN {
        let expected = ["seems so", "seems missed", "seems so", "seems missed"];
        assert_eq!(words(samples, &Measure::CPU_US), expected);
    }
    let expected = ["as expected", "target missed", "as expected", "target missed"];
    assert_eq!(words(SAMPLES_MIN, &Measure::CPU_US), expected);
    // A computed figure is always the same.
    assert_eq!(words(1, &Measure { is_exact: true, ..Measure::CPU_US }), expected);
}

/// Seen: "less than b, n" as expected, although n had crashed; and a verdict from five samples of
/// one rival and two of another.
#[test]
fn a_lead_is_over_those_that_were_compared() {
    let fast = [Some(1.0); 5];
    let slow = [Some(2.0); 5];
    let mut rows = rows(&[("a", &fast), ("b", &slow), ("few", &slow[..2]), ("n", &slow)]);
    rows.find_mut("c", "n").unwrap().samples.clear();
    rows.find_mut("c", "n").unwrap().failures = vec!["it crashed".to_owned()];
    let judge = rows.by(&Measure::CPU_US);
    let made = |others| judge.beats("c", "a", others, 1.0).unwrap();
    assert_eq!(made(&["b", "n"]).says, made(&["b"]).says);
    let words = [&["few", "b"], &["b", "few"]].map(|others| made(others).words());
    assert_eq!(words, ["seems so"; 2]);
}

/// Seen: "not measured" for a server that answered nothing, where it was expected to answer as much
/// as elsewhere.
#[test]
fn nothing_is_not_like_something() {
    let mut all = rows(&[("a", &[Some(9.0); 5])]);
    let mut row = all.find("c", "a").unwrap().clone();
    row.configuration.label = "starved".to_owned();
    for sample in &mut row.samples {
        sample.values.insert("cpu_us".to_owned(), 0.0);
    }
    all.add(row);
    let measure = measure(Better::More);
    let judge = all.by(&measure);
    assert_eq!(judge.alike("starved", "c", "a").unwrap().words(), "target missed");
    assert_eq!(judge.alike("c", "starved", "a").unwrap().words(), "not measured");
}

/// Seen: goals above the figure of a bare responder. Cause: they were set on another host. Cure:
/// nine tenths of its lead are enough.
#[test]
fn a_ceiling_bounds_the_goal() {
    let rows = rows(&[
        ("a", &[Some(1.4); 5]),
        ("b", &[Some(2.0); 5]),
        ("bare", &[Some(1.3); 5]),
        ("slow", &[Some(3.0); 5]),
        ("few", &[Some(1.3)]),
    ]);
    let judge = |ceilings| rows.by(&Measure::CPU_US).below(ceilings);
    let wants = |ceilings, times| {
        let made = judge(ceilings).beats("c", "a", &["b"], times).unwrap();
        let (_, target) = made.says.split_once(" (target ").unwrap();
        (made.words(), target.to_owned())
    };
    assert_eq!(wants(&[], 2.0), ("target missed", "2×)".to_owned()));
    let less = "2×, or 0.9 of a ceiling's lead: 1.38×)".to_owned();
    assert_eq!(wants(&["slow", "bare", "gone"], 2.0), ("as expected", less));
    let more = "1.2×, or 0.9 of a ceiling's lead)".to_owned();
    assert_eq!(wants(&["bare"], 1.2), ("as expected", more));
    // If a ceiling is worse than the rival, any lead suffices.
    let slow = "2×, or 0.9 of a ceiling's lead: 1.00×)".to_owned();
    assert_eq!(wants(&["slow"], 2.0), ("as expected", slow));
    // One sample of a ceiling changes no goal.
    let few = "2×, or 0.9 of a ceiling's lead)".to_owned();
    assert_eq!(wants(&["few"], 2.0), ("target missed", few));
}

#[test]
fn findings_and_goals_are_counted_apart() {
    let made = |verdict, is_sure, source| Expectation {
        says: String::new(),
        verdict,
        is_sure,
        source,
        because: String::new(),
        configuration: String::new(),
        measure: "",
    };
    let all = [
        made(Judgement::Met, true, ExpectationSource::Paper),
        made(Judgement::Failed, true, ExpectationSource::Paper),
        made(Judgement::Met, false, ExpectationSource::Paper),
        made(Judgement::Met, true, ExpectationSource::Goal),
        made(Judgement::Equal, true, ExpectationSource::Goal),
        made(Judgement::Failed, false, ExpectationSource::Goal),
        made(Judgement::NotMeasured, true, ExpectationSource::Goal),
    ];
    assert_eq!(
        Tally::of(&all).sentences(),
        "1 of 2 findings of the papers are seen here. 1 of 2 goals of this project are \
         reached, 1 about equal. Of 2 there are too few samples for a verdict. Not measured: 1."
    );
    let Tally { findings, reached, equal, missed, unsure, not_measured, .. } = Tally::of(&all);
    assert_eq!(findings + reached + equal + missed + unsure + not_measured, all.len());
    assert_eq!(Tally::of(&all[3..4]).sentences(), "1 of 1 goals of this project are reached.");
    assert_eq!(Tally::default().sentences(), "");
    let rows = rows(&[("a", &[Some(1.0)])]);
    let made = rows.by(&Measure::CPU_US).at_most("c", "a", 1.0);
    assert_eq!(made.as_ref().unwrap().source, ExpectationSource::Goal);
    assert_eq!(paper(made).unwrap().source, ExpectationSource::Paper);
}

/// Seen: the margin was one-sided: a lead of a thousandth was "as expected", and a lag of the same
/// size "about equal".
#[test]
fn a_tie_is_no_lead_on_either_side() {
    let rows = rows(&[("a", &[Some(69_500.0)]), ("b", &[Some(69_400.0)])]);
    for better in [Better::More, Better::Less] {
        let measure = measure(better);
        let judge = rows.by(&measure);
        let ahead = |of, by| verdict(judge.beats("c", of, &[by], 1.0));
        assert_eq!(
            (ahead("a", "b"), ahead("b", "a"), ahead("a", "a")),
            (Judgement::Equal, Judgement::Equal, Judgement::Equal)
        );
    }
}

#[test]
fn alike_within_the_margin() {
    let mut all = rows(&[("a", &[Some(1.0)])]);
    for (configuration, figure) in [("near", 1.05), ("far", 1.2)] {
        let mut row = all.find("c", "a").unwrap().clone();
        row.configuration.label = configuration.to_owned();
        let values = &mut row.samples[0].values;
        values.insert("cpu_us".to_owned(), figure);
        all.add(row);
    }
    let judge = all.by(&Measure::CPU_US);
    let alike = |configuration| verdict(judge.alike(configuration, "c", "a"));
    assert_eq!(
        (alike("near"), alike("far"), alike("gone")),
        (Judgement::Met, Judgement::Failed, Judgement::NotMeasured)
    );
}

/// Seen: "as expected: weft ahead of nginx in replies (0.00; nginx 0.00)".
#[test]
fn zero_rates_are_no_lead() {
    let rows = rows(&[("a", &[Some(0.0)]), ("b", &[Some(0.0)])]);
    let verdict = |better| {
        let measure = measure(better);
        let judge = rows.by(&measure);
        judge.beats("c", "a", &["b"], 10.0).unwrap().verdict
    };
    assert_eq!(verdict(Better::More), Judgement::Failed);
    assert_eq!(verdict(Better::Less), Judgement::Equal);
}

/// Seen: "weft ahead of nginx" although two of nginx's three samples had failed. Cause: a row
/// without a median counted as one that never ended. Cure: only if no sample failed.
#[test]
fn failed_peer_is_not_beaten() {
    let mut rows = rows(&[("a", &[Some(1.0)]), ("b", &[Some(2.0)]), ("n", &[None])]);
    let failures = ["it crashed", "it crashed"].map(str::to_owned).to_vec();
    rows.find_mut("c", "b").unwrap().failures = failures;
    let never = Measure { can_be_never: true, ..Measure::CPU_US };
    for measure in [&Measure::CPU_US, &never] {
        let judge = rows.by(measure);
        let beaten = verdict(judge.beats("c", "a", &["b"], 1.0));
        let near = verdict(judge.near("c", "a", 1.0, "b"));
        assert_eq!((beaten, near), (Judgement::NotMeasured, Judgement::NotMeasured));
        // Our own failures are shown.
        let ours = verdict(judge.beats("c", "b", &["a"], 1.0));
        assert_eq!(
            (ours, verdict(judge.at_most("c", "b", 9.0))),
            (Judgement::Failed, Judgement::Failed)
        );
    }
    let judge = rows.by(&never);
    let near = verdict(judge.near("c", "a", 1.0, "n"));
    assert_eq!(near, Judgement::Met, "the other one never came to an end");
}

/// Seen: two figures of 0 were "NOT AS EXPECTED: say the same". Cause: a quotient of two zeros.
/// Cure: it is not computed.
#[test]
fn zero_equals_zero() {
    let rows = rows(&[("a", &[Some(0.0)]), ("b", &[Some(0.0)]), ("one", &[Some(1.0)])]);
    for better in [Better::Less, Better::More] {
        let measure = measure(better);
        let judge = rows.by(&measure);
        let same = |other| verdict(judge.same("c", "a", other));
        assert_eq!((same("b"), same("one")), (Judgement::Met, Judgement::Failed));
        let near = |of, other| verdict(judge.near("c", of, 0.7, other));
        assert_eq!((near("a", "b"), near("one", "b")), (Judgement::Met, Judgement::Failed));
        assert_eq!(verdict(judge.within("c", "c", "a", 0.7)), Judgement::Met);
    }
}

/// Seen: "as expected: recovery of at most 1 s (0.800 s)" for a server that did not recover in one
/// of three samples.
#[test]
fn reason_counts_missing_figures() {
    let rows = rows(&[
        ("a", &[Some(0.8), Some(0.6), None]),
        ("b", &[None, Some(1.2), None]),
        ("n", &[None]),
    ]);
    let measure = Measure { can_be_never: true, ..Measure::CPU_US };
    let judge = rows.by(&measure);
    let because = |system| judge.at_most("c", system, 1.0).unwrap().because;
    assert_eq!(because("a"), "0.800 µs, never in 1 of 3; best sample: 0.600 µs");
    assert_eq!(because("b"), "never in 2 of 3");
    assert_eq!(because("n"), "never");
}

#[test]
fn of_rates_the_greater_one_is_ahead() {
    let rows = rows(&[("a", &[Some(200.0)]), ("b", &[Some(100.0)])]);
    let measure = measure(Better::More);
    let judge = rows.by(&measure);
    let verdict = |of, by| verdict(judge.beats("c", of, &[by], 1.5));
    assert_eq!((verdict("a", "b"), verdict("b", "a")), (Judgement::Met, Judgement::Failed));
}

/// Seen: "as expected: 10 times as good as nginx in requests that failed (0 %; nginx 0 %)", for an
/// overload in which nothing could fail. Cause: zero was ahead of zero. Cure: two zeros are a tie,
/// whatever lead is required.
#[test]
fn two_that_have_no_errors_are_equal() {
    let rows = rows(&[("a", &[Some(0.0)]), ("b", &[Some(0.0)]), ("c", &[Some(1.0)])]);
    let judge = rows.by(&Measure::CPU_US);
    for times in [0.5, 1.0, 10.0] {
        let made = judge.beats("c", "a", &["b", "c"], times).unwrap();
        assert_eq!((made.verdict, &*made.because), (Judgement::Equal, "0 µs; b 0 µs; c 1.00 µs"));
    }
    // One error in several samples leaves the median at zero.
    let verdict = |of, by| judge.beats("c", of, &[by], 10.0).unwrap().verdict;
    assert_eq!((verdict("a", "c"), verdict("c", "a")), (Judgement::Met, Judgement::Failed));
}

/// Seen: "as expected: 10× less requests that failed than b (0 %; b 0 %)". Cause: a request had
/// failed in one of b's five samples, so that not all were zero, and with two zero medians the
/// target counted as reached. Cure: two zeros neither reach nor miss a lead.
#[test]
fn a_tie_in_the_middle_reaches_no_target() {
    let none = [Some(0.0); 5];
    let once = [0.0, 0.0, 0.0, 0.0, 1.0].map(Some);
    let rows = rows(&[("a", &none), ("b", &once), ("c", &[Some(1.0); 5])]);
    let judge = rows.by(&Measure::CPU_US);
    let words = |of: &str, by: &str, times| judge.beats("c", of, &[by], times).unwrap().words();
    for times in [1.0, 10.0] {
        assert_eq!([words("a", "b", times), words("b", "a", times)], ["about equal"; 2]);
    }
    assert_eq!([words("a", "c", 10.0), words("c", "a", 10.0)], ["as expected", "target missed"]);
    // Zero is at most twice zero.
    assert_eq!(words("a", "b", 0.5), "as expected");
}

/// Seen: "resident memory of each of at most 4403.2 bytes (4,595 bytes)".
#[test]
fn numbers_of_limits() {
    let shown = [0.7, 1.0, 1.35, 30.0, 95.0, 1000.0, 4.3 * 1024.0].map(plain);
    let expected = ["0.7", "1", "1.35", "30", "95", "1,000", "4,403"];
    assert_eq!(shown, expected);
}

#[test]
fn the_reason_names_the_figures() {
    let rows = rows(&[("a", &[Some(1.0), Some(2.0), Some(3.0)]), ("b", &[Some(4.0)])]);
    let judge = rows.by(&Measure::CPU_US);
    let made = judge.beats("c", "a", &["b", "gone"], 1.0).unwrap();
    assert_eq!(made.says, "a, c: less server CPU per request than b");
    assert_eq!(made.because, "2.00 µs; b 4.00 µs: 2.00× (best samples 4.00×)");
}

/// Seen: "NOT AS EXPECTED: 2.2 times as good as nginx (…: 2.00 times as good)", which reads as if
/// it had been slower.
#[test]
fn a_lead_is_told_before_its_target() {
    let rows = rows(&[("a", &[Some(1.0)]), ("b", &[Some(2.0)]), ("c", &[Some(4.0)])]);
    let judge = rows.by(&Measure::CPU_US);
    let made = judge.beats("c", "a", &["b", "c"], 2.2).unwrap();
    let title = Measure::CPU_US.title;
    assert_eq!(
        format!("{}: {}", made.words(), made.says),
        format!("seems missed: a, c: 2.00× less {title} than b (target 2.2×)")
    );
    let made = judge.beats("c", "b", &["a"], 0.4).unwrap();
    assert_eq!(
        (made.verdict, made.says),
        (Judgement::Met, format!("b, c: 2.00× more {title} than a (target at most 2.5×)"))
    );
}

/// Seen: "0.65 µs; other 1.00 µs", without the best samples, for every kind of bound but a lead.
#[test]
fn best_samples_beside_medians() {
    let mut rows = rows(&[
        ("a", &[Some(1.0), Some(2.0), Some(3.0)]),
        ("b", &[Some(4.0)]),
        ("none", &[Some(0.0)]),
    ]);
    let mut far = rows.find("c", "b").unwrap().clone();
    (far.configuration.label, far.system) = ("far".to_owned(), "a".to_owned());
    rows.add(far);
    let judge = rows.by(&Measure::CPU_US);
    let because = |made: Option<Expectation>| made.unwrap().because;
    assert_eq!(
        because(judge.near("c", "a", 0.7, "b")),
        "2.00 µs; b 4.00 µs: ratio 0.50 (best samples 0.25)"
    );
    assert_eq!(
        because(judge.within("far", "c", "a", 2.0)),
        "4.00 µs against 2.00 µs: ratio 2.00 (best samples 4.00)"
    );
    let and = "4.00 µs and 2.00 µs: ratio 2.00 (best samples 4.00)";
    assert_eq!(because(judge.same("c", "b", "a")), and);
    assert_eq!(because(judge.alike("far", "c", "a")), and);
    assert_eq!(because(judge.at_most("c", "a", 1.5)), "2.00 µs; best sample: 1.00 µs");
    assert_eq!(because(judge.at_most("c", "b", 1.5)), "4.00 µs");
    // There is no quotient with zero.
    assert_eq!(because(judge.near("c", "a", 0.7, "none")), "2.00 µs; none 0 µs");
}
