//! Rules for every generated page, checked with a browser's parser.

use std::collections::HashSet;

use scraper::{ElementRef, Html, Selector};

/// Parses a page and checks the rules for all pages.
pub(crate) fn check(page: &str) -> Html {
    let html = Html::parse_document(page);
    assert_eq!(html.errors, [] as [&str; 0], "{page}");
    let count = |selector: &str| select(&html, selector).count();
    for (selector, wanted) in
        [("html[lang]", 1), ("meta[charset]", 1), ("title", 1), ("h1", 1), ("script", 0)]
    {
        assert_eq!(count(selector), wanted, "{selector} in {page}");
    }
    let ids: Vec<_> = select(&html, "[id]").filter_map(|element| element.attr("id")).collect();
    let distinct: HashSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "an id occurs twice: {ids:?}");
    for link in select(&html, "[href]").filter_map(|element| element.attr("href")) {
        let is_known = link.strip_prefix('#').is_none_or(|id| ids.contains(&id));
        assert!(is_known && !link.contains("://"), "{link} in {page}");
    }
    assert_eq!(select(&html, "[src]").count(), 0, "the page loads another resource: {page}");
    html
}

pub(crate) fn select<'a>(
    html: &'a Html,
    selector: &str,
) -> impl Iterator<Item = ElementRef<'a>> + use<'a> {
    let selector = Selector::parse(selector).unwrap();
    html.select(&selector).collect::<Vec<_>>().into_iter()
}

pub(crate) fn text(element: ElementRef<'_>) -> String {
    element.text().collect()
}
