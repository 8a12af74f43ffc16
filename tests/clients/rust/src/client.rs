//! One producer, and what the process was told to start.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use rocketmq::conf::{ClientOption, ProducerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::FilterExpression;
use rocketmq::model::message::MessageView;
use rocketmq::model::transaction::TransactionResolution;
use rocketmq::{Producer, SimpleConsumer};

/// Ends a half: a commit if told true, else a rollback.
pub type End = Box<dyn FnOnce(bool) -> Pin<Box<dyn Future<Output = Result<(), ClientError>> + Send>> + Send>;
type Answers = Arc<Mutex<HashMap<String, Vec<String>>>>;

/// A simple consumer, and what it was told to receive.
pub struct Consumer {
    pub native: SimpleConsumer,
    pub topic: String,
    pub filter: FilterExpression,
}

pub struct Client {
    endpoint: String,
    pub producer: Producer,
    pub answers: Answers,
    pub halves: Mutex<HashMap<String, End>>,
    pub consumers: Shelf<Consumer>,
    pub messages: Shelf<MessageView>,
}

impl Client {
    pub async fn start(endpoint: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let answers = Answers::default();
        let told = answers.clone();
        let checker = Box::new(move |_, half: MessageView| check(&told, &half));
        let option = ProducerOption::default();
        let mut producer = Producer::new_transaction_producer(option, options(endpoint), checker)?;
        producer.start().await?;
        Ok(Client {
            endpoint: endpoint.to_string(),
            producer,
            answers,
            halves: Mutex::default(),
            consumers: Shelf::default(),
            messages: Shelf::default(),
        })
    }

    /// The library's defaults, at the broker's address.
    pub fn options(&self) -> ClientOption {
        options(&self.endpoint)
    }
}

fn options(endpoint: &str) -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(endpoint);
    if let (Ok(key), Ok(secret)) = (env::var("TIDEWHEEL_CLIENT_ACCESS_KEY"), env::var("TIDEWHEEL_CLIENT_SECRET")) {
        options.set_access_key(key);
        options.set_secret_key(secret);
    }
    options
}

/// Answers as it was told to: one after the other, the last for ever.
fn check(answers: &Answers, half: &MessageView) -> TransactionResolution {
    let mut answers = answers.lock().unwrap();
    let name = String::from_utf8_lossy(half.body()).to_string();
    let how = match answers.get_mut(&name) {
        None => String::new(),
        Some(left) if left.len() > 1 => left.remove(0),
        Some(left) => left[0].clone(),
    };
    match how.as_str() {
        "commit" => TransactionResolution::COMMIT,
        "rollback" => TransactionResolution::ROLLBACK,
        _ => TransactionResolution::UNKNOWN,
    }
}

/// Keeps things by number; a thing that was taken away leaves its number behind.
pub struct Shelf<T>(Mutex<Vec<Option<Arc<T>>>>);

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Shelf(Mutex::default())
    }
}

impl<T> Shelf<T> {
    pub fn add(&self, thing: T) -> usize {
        let mut things = self.0.lock().unwrap();
        things.push(Some(Arc::new(thing)));
        things.len() - 1
    }

    pub fn get(&self, number: usize) -> Result<Arc<T>, String> {
        let things = self.0.lock().unwrap();
        things.get(number).cloned().flatten().ok_or(format!("there is no number {number}"))
    }

    pub fn take(&self, number: usize) -> Option<T> {
        let taken = self.0.lock().unwrap().get_mut(number)?.take()?;
        Arc::into_inner(taken)
    }
}
