//! Block tables on request: dense rows and compressed ones.
#![cfg(not(looseleaf_loom))]

use looseleaf_core::{Admit, BlockManager, Config, Counts, Error, PageTable, Reserve};

/// Three sequences of 5, 0 (of 3, not reserved yet) and 8 tokens; block size 4.
fn sequences() -> (BlockManager, [i64; 3]) {
    let config = Config::new(16, 4, 4, 32).expect("valid sizes");
    let manager = BlockManager::new(config).expect("valid sizes");
    let handles = [5, 3, 8].map(|num_tokens| {
        let tokens: Vec<i32> = (0..num_tokens).collect();
        let mut locked = manager.lock().expect("not poisoned");
        locked
            .admit(&Admit::new(&tokens))
            .expect("room")
            .id
            .to_handle()
    });
    let computed = [handles[0], handles[2]];
    let mut locked = manager.lock().expect("not poisoned");
    locked
        .reserve(&Reserve::new(&computed), None)
        .expect("room");
    locked
        .commit(&computed, Counts::Default, None)
        .expect("reserved");
    drop(locked);
    (manager, handles)
}

fn table(manager: &BlockManager, handle: i64) -> Vec<i32> {
    let blocks = manager.lock().expect("not poisoned").blocks(handle);
    blocks
        .expect("alive")
        .iter()
        .map(|block| block.as_i32())
        .collect()
}

#[test]
fn rows_are_the_tables_padded_with_the_null_block() {
    let (manager, [first, second, third]) = sequences();
    let mut rows = [-7; 9];
    let mut locked = manager.lock().expect("not poisoned");
    locked
        .gather_rows(&[third, first, second], &mut rows, 3)
        .expect("fits");
    drop(locked);
    for (row, handle) in rows.chunks(3).zip([third, first, second]) {
        let mut expected = table(&manager, handle);
        expected.resize(3, 0);
        assert_eq!(row, expected);
    }
}

#[test]
fn rows_that_do_not_fit_are_not_written() {
    let (manager, handles) = sequences();
    let mut locked = manager.lock().expect("not poisoned");
    let mut rows = [-7; 6];
    let narrow = Error::BatchTooSmall {
        what: "columns",
        requested: 2,
        limit: 1,
    };
    assert_eq!(locked.gather_rows(&handles, &mut rows[..3], 1), Err(narrow));
    let answer = locked.gather_rows(&handles, &mut rows[..5], 2);
    assert!(matches!(
        answer,
        Err(Error::InvalidArgument {
            argument: "table",
            ..
        })
    ));
    let twice = [handles[0], handles[0]];
    let answer = locked.gather_rows(&twice, &mut rows[..4], 2);
    assert_eq!(answer, Err(Error::DuplicateSequence { handle: handles[0] }));
    locked.release(&handles[..1]).expect("alive");
    let answer = locked.gather_rows(&handles, &mut rows, 2);
    assert_eq!(answer, Err(Error::StaleSequence { handle: handles[0] }));
    assert_eq!(rows, [-7; 6]);
    locked.gather_rows(&[], &mut [], 0).expect("nothing");
}

#[test]
fn compressed_rows_name_the_pages_of_reserved_tokens() {
    let (manager, handles) = sequences();
    let [first, _, third] = handles.map(|handle| table(&manager, handle));
    let (mut indptr, mut indices, mut last_page_len) = ([-7; 6], [-7; 5], [-7; 4]);
    let mut pages = PageTable {
        indptr: &mut indptr,
        indices: &mut indices,
        last_page_len: &mut last_page_len,
    };
    let mut locked = manager.lock().expect("not poisoned");
    // 5 tokens in two pages; none yet; 8 tokens in two full pages.
    assert_eq!(locked.csr(&handles, &mut pages), Ok(4));
    assert_eq!(indptr, [0, 2, 2, 4, 4, 4]);
    assert_eq!(indices[..4], [first, third].concat());
    assert_eq!(indices[4], -7);
    assert_eq!(last_page_len, [1, 0, 4, 0]);
}

#[test]
fn compressed_rows_that_do_not_fit_are_not_written() {
    let (manager, handles) = sequences();
    let mut locked = manager.lock().expect("not poisoned");
    for (lengths, what, requested) in [
        ([3, 4, 3], "indptr", 4),
        ([4, 3, 3], "indices", 4),
        ([4, 4, 2], "last_page_len", 3),
    ] {
        let [mut indptr, mut indices, mut last_page_len] = lengths.map(|length| vec![-7; length]);
        let mut pages = PageTable {
            indptr: &mut indptr,
            indices: &mut indices,
            last_page_len: &mut last_page_len,
        };
        let limit = requested - 1;
        let refused = Error::BatchTooSmall {
            what,
            requested,
            limit,
        };
        assert_eq!(locked.csr(&handles, &mut pages), Err(refused));
        let written = [indptr, indices, last_page_len].concat();
        assert!(written.iter().all(|&cell| cell == -7));
    }
}
