//! What the client can be told to do.

use std::collections::HashMap;
use std::time::Duration;

use rocketmq::conf::SimpleConsumerOption;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{AckMessageEntry, Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::Transaction;
use rocketmq::SimpleConsumer;
use serde_json::{json, Value};

use crate::client::{Client, Consumer};
use crate::handle::Handle;
use crate::Told;

impl Client {
    pub async fn carry_out(&self, verb: &str, asked: &Value) -> Told {
        match verb {
            "send" => self.send(asked).await,
            "send_half" => self.send_half(asked).await,
            "end_half" => self.end_half(asked).await,
            "answer_checks" => self.answer_checks(asked),
            "simple" => self.simple(asked).await,
            "receive" => self.receive(asked).await,
            "ack" => self.ack(asked).await,
            "close" => self.close(asked).await,
            _ => Err(format!("this library cannot {verb}").into()),
        }
    }

    // What is sent.

    async fn send(&self, asked: &Value) -> Told {
        let receipt = self.producer.send(message(asked)?).await?;
        Ok(json!({"message_id": receipt.message_id(), "recall_handle": ""}))
    }

    async fn send_half(&self, asked: &Value) -> Told {
        let name = text(asked, "name");
        let half = MessageBuilder::transaction_message_builder(text(asked, "topic"), name.clone().into_bytes())
            .set_keys(vec![name.clone()])
            .build()?;
        let transaction = self.producer.send_transaction_message(half).await?;
        let end = move |is_commit| async move {
            if is_commit {
                transaction.commit().await
            } else {
                transaction.rollback().await
            }
        };
        let end = Box::new(move |is_commit| Box::pin(end(is_commit)) as _);
        self.halves.lock().unwrap().insert(name, end);
        Ok(Value::Null)
    }

    async fn end_half(&self, asked: &Value) -> Told {
        let end = self.halves.lock().unwrap().remove(&text(asked, "name"));
        end.ok_or("this library ends a half once")?(text(asked, "how") == "commit").await?;
        Ok(Value::Null)
    }

    fn answer_checks(&self, asked: &Value) -> Told {
        self.answers.lock().unwrap().insert(text(asked, "name"), texts(&asked["how"]));
        Ok(Value::Null)
    }

    // What is received.

    async fn simple(&self, asked: &Value) -> Told {
        let mut options = SimpleConsumerOption::default();
        options.set_consumer_group(text(asked, "group"));
        options.set_topics(vec![text(asked, "topic")]);
        let mut client_options = self.options();
        client_options.set_long_polling_timeout(seconds(asked, "await_seconds"));
        let mut native = SimpleConsumer::new(options, client_options)?;
        native.start().await?;
        let topic = text(asked, "topic");
        Ok(json!(self.consumers.add(Consumer { native, topic, filter: filter(asked) })))
    }

    async fn receive(&self, asked: &Value) -> Told {
        let consumer = self.consumers.get(number(asked, "consumer"))?;
        let count = number(asked, "count") as i32;
        let lease = seconds(asked, "lease_seconds");
        let received = consumer.native.receive_with(&consumer.topic, &consumer.filter, count, lease).await?;
        Ok(received.into_iter().map(|message| self.got(message)).collect())
    }

    async fn ack(&self, asked: &Value) -> Told {
        let message = self.messages.get(number(asked, "native"))?;
        let meant = Handle { message, handle: text(asked, "handle") };
        self.consumers.get(number(asked, "consumer"))?.native.ack(&meant).await?;
        Ok(Value::Null)
    }

    /// A receive that still waits keeps its consumer until it ends.
    async fn close(&self, asked: &Value) -> Told {
        if let Some(consumer) = self.consumers.take(number(asked, "consumer")) {
            consumer.native.shutdown().await?;
        }
        Ok(Value::Null)
    }

    fn got(&self, message: MessageView) -> Value {
        let mut keys = message.keys().to_vec();
        keys.sort();
        let mut got = json!({
            "handle": message.receipt_handle(),
            "message_id": message.message_id(),
            "body": String::from_utf8_lossy(message.body()),
            "attempt": message.delivery_attempt(),
            "tag": message.tag().unwrap_or_default(),
            "keys": keys,
            "properties": message.properties(),
            "message_group": message.message_group().unwrap_or_default(),
        });
        got["native"] = json!(self.messages.add(message));
        got
    }
}

fn message(asked: &Value) -> Result<impl Message, Box<dyn std::error::Error + Send + Sync>> {
    if asked.get("priority").is_some() {
        return Err("this library knows no priorities".into());
    }
    let mut message = MessageBuilder::builder()
        .set_topic(text(asked, "topic"))
        .set_body(text(asked, "body").into_bytes())
        .set_keys(texts(&asked["keys"]))
        .set_properties(properties(&asked["properties"]));
    if asked.get("tag").is_some() {
        message = message.set_tag(text(asked, "tag"));
    }
    if asked.get("message_group").is_some() {
        message = message.set_message_group(text(asked, "message_group"));
    }
    if let Some(due_s) = asked["deliver_at_s"].as_i64() {
        message = message.set_delivery_timestamp(due_s);
    }
    Ok(message.build()?)
}

fn filter(asked: &Value) -> FilterExpression {
    let kind = if asked["is_sql"] == true { FilterType::Sql } else { FilterType::Tag };
    FilterExpression::new(kind, text(asked, "filter"))
}

// Words.

fn text(asked: &Value, name: &str) -> String {
    asked[name].as_str().unwrap_or_default().to_string()
}

fn texts(all: &Value) -> Vec<String> {
    all.as_array().into_iter().flatten().filter_map(|one| Some(one.as_str()?.to_string())).collect()
}

fn properties(all: &Value) -> HashMap<String, String> {
    let named = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_string()));
    all.as_object().into_iter().flatten().filter_map(named).collect()
}

fn number(asked: &Value, name: &str) -> usize {
    asked[name].as_u64().unwrap_or_default() as usize
}

fn seconds(asked: &Value, name: &str) -> Duration {
    Duration::from_secs(asked[name].as_u64().unwrap_or_default())
}
