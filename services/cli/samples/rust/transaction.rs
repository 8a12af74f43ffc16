// Sends two messages that agree with a database: a commit, and a check-back for a commit that never came.
//
//   cargo new sample && cd sample
//   cargo add rocketmq@5.0.0 tokio --features tokio/full
//   cargo add time@0.3 --features formatting,local-offset    (5.0.0 does not compile without)
//   tidewheel sample rust --use transaction > src/main.rs
//   cargo run
//
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// rocketmq 5.0.0 has no TLS.

use std::collections::HashSet;
use std::env;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const TOPIC: &str = "sample-rust-transaction";
const GROUP: &str = "sample-rust-transaction";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut client = ClientOption::default();
    client.set_access_url("127.0.0.1:8081");
    if let (Ok(key), Ok(secret)) = (env::var("TIDEWHEEL_ACCESS_KEY"), env::var("TIDEWHEEL_SECRET_KEY")) {
        client.set_access_key(key);
        client.set_secret_key(secret);
    }
    client.set_long_polling_timeout(Duration::from_secs(10));
    // Stands for the table of your database.
    let paid = Arc::new(Mutex::new(HashSet::new()));
    let database = paid.clone();
    // The broker asks about a half that stays open: the database knows.
    let checker = Box::new(move |_, half: MessageView| {
        println!("asked about {}", half.message_id());
        let is_paid = database
            .lock()
            .unwrap()
            .contains(String::from_utf8_lossy(half.body()).as_ref());
        if is_paid {
            TransactionResolution::COMMIT
        } else {
            TransactionResolution::UNKNOWN // the database may still commit: the broker asks again
        }
    });
    let mut producer = Producer::new_transaction_producer(ProducerOption::default(), client.clone(), checker)?;
    producer.start().await?;
    let mut options = SimpleConsumerOption::default();
    options.set_consumer_group(GROUP);
    let mut consumer = SimpleConsumer::new(options, client)?;
    consumer.start().await?;

    // A half: no consumer sees it before its commit.
    let half = MessageBuilder::transaction_message_builder(TOPIC, b"order 7 is paid".to_vec()).build()?;
    let transaction = producer.send_transaction_message(half).await?;
    let first = transaction.message_id().to_string();
    println!("sent {first}");
    paid.lock().unwrap().insert("order 7 is paid"); // the database commits
    transaction.commit().await?;

    let half = MessageBuilder::transaction_message_builder(TOPIC, b"order 8 is paid".to_vec()).build()?;
    let second = producer.send_transaction_message(half).await?.message_id().to_string();
    println!("sent {second}");
    // The database commits, and then the process dies: the broker asks after 6 s.
    paid.lock().unwrap().insert("order 8 is paid");

    let all = FilterExpression::new(FilterType::Tag, "*");
    let mut received = HashSet::new();
    while !(received.contains(&first) && received.contains(&second)) {
        // Up to 32 messages, leased for 15 s.
        for one in consumer.receive_with(TOPIC, &all, 32, Duration::from_secs(15)).await? {
            println!("received {} {}", one.message_id(), String::from_utf8_lossy(one.body()));
            consumer.ack(&one).await?;
            received.insert(one.message_id().to_string());
        }
    }

    consumer.shutdown().await?;
    producer.shutdown().await?;
    Ok(())
}
