// Sends the messages of a group, and receives them in order.
//
//   cargo new sample && cd sample
//   cargo add rocketmq@5.0.0 tokio --features tokio/full
//   cargo add time@0.3 --features formatting,local-offset    (5.0.0 does not compile without)
//   tidewheel sample rust --use fifo > src/main.rs
//   cargo run
//
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// rocketmq 5.0.0 has no TLS.

use std::collections::HashSet;
use std::env;
use std::error::Error;
use std::time::Duration;

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

const TOPIC: &str = "sample-rust-fifo";
const GROUP: &str = "sample-rust-fifo";

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

    let mut sent = HashSet::new();
    for step in ["created", "paid", "shipped"] {
        let body = format!("order 7 is {step}").into_bytes();
        let message = MessageBuilder::fifo_message_builder(TOPIC, body, "order-7").build()?;
        let id = producer.send(message).await?.message_id().to_string();
        println!("sent {id}");
        sent.insert(id);
    }

    let all = FilterExpression::new(FilterType::Tag, "*");
    let mut received = HashSet::new();
    while !sent.is_subset(&received) {
        // No more of a group comes before these are acknowledged.
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
