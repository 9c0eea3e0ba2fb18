//! `rusqlite` through `offload`: while a statement runs, the processor runs other fibers. The
//! statement waits for one of them, so on a blocked processor it would never end.

use fiber::sync::{Mutex, mpsc};
use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

fn main() {
    let runtime = fiber::Runtime::builder().processors(1).start().unwrap();
    runtime.run(|| {
        let (word, words) = mpsc::channel::<i64>();
        let connection = Connection::open_in_memory().unwrap();
        let words = std::sync::Mutex::new(words);
        let next = move |_: &mut rusqlite::functions::Context<'_>| {
            Ok(words.lock().unwrap().recv().unwrap())
        };
        connection
            .create_scalar_function("next_word", 0, FunctionFlags::SQLITE_UTF8, next)
            .unwrap();
        connection.execute("create table words (word integer)", ()).unwrap();
        let database = Mutex::new(connection);
        fiber::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100 {
                    let mut connection = database.lock().unwrap();
                    // Not Sync, but Send: an exclusive borrow may go to another thread.
                    let connection = &mut *connection;
                    fiber::offload(move || {
                        connection.execute("insert into words values (next_word())", ()).unwrap()
                    });
                }
            });
            for number in 1..=100 {
                word.send(number).unwrap();
                fiber::yield_now();
            }
        });
        let connection = database.into_inner().unwrap();
        let sum = fiber::offload(move || {
            connection
                .query_row("select sum(word) from words", (), |row| row.get::<_, i64>(0))
                .unwrap()
        });
        assert_eq!(sum, 5050);
        println!("sqlite: {sum}");
    });
}
