//! A message's receipt handle, as a scenario means it: it may be one that is void.

use std::sync::Arc;

use rocketmq::model::common::Endpoints;
use rocketmq::model::message::{AckMessageEntry, MessageView};

pub struct Handle {
    pub message: Arc<MessageView>,
    pub handle: String,
}

impl AckMessageEntry for Handle {
    fn topic(&self) -> String {
        self.message.topic().to_string()
    }

    fn message_id(&self) -> String {
        self.message.message_id().to_string()
    }

    fn receipt_handle(&self) -> String {
        self.handle.clone()
    }

    fn endpoints(&self) -> &Endpoints {
        AckMessageEntry::endpoints(&*self.message)
    }
}
