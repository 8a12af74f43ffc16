//! Apache RocketMQ's Rust client, told over stdin what to do, a JSON line each:
//!
//! `{"id": 7, "verb": "receive", "arguments": {...}}` -> `{"id": 7, "told": ...}` or `{"id": 7, "refused": "..."}`
//!
//! Answers come when they are there, in any order, so a receive may wait while a send goes on. The verbs are
//! those of tests/clients/official.py that this library has; what it has not is told so.

mod client;
mod handle;
mod verbs;

use std::error::Error;
use std::sync::Arc;

use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::client::Client;

type Told = Result<Value, Box<dyn Error + Send + Sync>>;

/// Plays until stdin ends.
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let endpoint = std::env::args().nth(1).ok_or("say where the broker is")?;
    let client = Arc::new(Client::start(&endpoint).await?);
    println!("{}", json!({"id": 0, "told": "started"}));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let command: Value = serde_json::from_str(&line)?;
        tokio::spawn(answer(client.clone(), command));
    }
    if let Some(client) = Arc::into_inner(client) {
        client.producer.shutdown().await?;
    }
    Ok(())
}

async fn answer(client: Arc<Client>, command: Value) {
    let id = &command["id"];
    let verb = command["verb"].as_str().unwrap_or_default();
    match client.carry_out(verb, &command["arguments"]).await {
        Ok(told) => println!("{}", json!({"id": id, "told": told})),
        Err(refusal) => println!("{}", json!({"id": id, "refused": refusal.to_string()})),
    }
}
