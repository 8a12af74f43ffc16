// Sends a message that is delivered in 3 seconds.
//
//   cargo new sample && cd sample
//   cargo add rocketmq@5.0.0 tokio --features tokio/full
//   cargo add time@0.3 --features formatting,local-offset    (5.0.0 does not compile without)
//   tidewheel sample rust --use delay > src/main.rs
//   cargo run
//
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// rocketmq 5.0.0 has no TLS.

use std::collections::HashSet;
use std::env;
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

const TOPIC: &str = "sample-rust-delay";
const GROUP: &str = "sample-rust-delay";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut client = ClientOption::default();
    client.set_access_url("127.0.0.1:8081");
    if let (Ok(key), Ok(secret)) = (env::var("TIDEWHEEL_ACCESS_KEY"), env::var("TIDEWHEEL_SECRET_KEY")) {
        client.set_access_key(key);
        client.set_secret_key(secret);
    }
    client.set_long_polling_timeout(Duration::from_secs(10));
    let mut producer = Producer::new(ProducerOption::default(), client.clone())?;
    producer.start().await?;
    let mut options = SimpleConsumerOption::default();
    options.set_consumer_group(GROUP);
    let mut consumer = SimpleConsumer::new(options, client)?;
    consumer.start().await?;

    let due = SystemTime::now() + Duration::from_secs(3);
    let due_s = due.duration_since(UNIX_EPOCH)?.as_secs(); // the client knows whole seconds
    let message =
        MessageBuilder::delay_message_builder(TOPIC, b"a reminder from Rust".to_vec(), due_s as i64).build()?;
    let sent = producer.send(message).await?.message_id().to_string();
    println!("sent {sent}");

    let all = FilterExpression::new(FilterType::Tag, "*");
    let mut received = HashSet::new();
    while !received.contains(&sent) {
        // Up to 32 messages, leased for 15 s.
        for one in consumer.receive_with(TOPIC, &all, 32, Duration::from_secs(15)).await? {
            let late = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64 - due_s as i64 * 1000;
            println!(
                "received {} {} {late} ms after it was due",
                one.message_id(),
                String::from_utf8_lossy(one.body())
            );
            consumer.ack(&one).await?;
            received.insert(one.message_id().to_string());
        }
    }

    consumer.shutdown().await?;
    producer.shutdown().await?;
    Ok(())
}
