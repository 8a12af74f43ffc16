package main

import (
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// plan is what a listener does: sleeps, fails a message's first calls, and the message `poison` always.
type plan struct {
	Seconds  float64 `json:"seconds"`
	Failures int     `json:"failures"`
	Poison   string  `json:"poison"`
}

// call is one call of a listener; EndedMs is 0 while it runs.
type call struct {
	Body         string `json:"body"`
	Attempt      int32  `json:"attempt"`
	MessageGroup string `json:"message_group"`
	LiteTopic    string `json:"lite_topic"`
	BeganMs      int64  `json:"began_ms"`
	EndedMs      int64  `json:"ended_ms"`
}

// listener does what it was told, and notes when; lite is the consumer of lite topics that calls it, if one does.
type listener struct {
	plan  plan
	lite  rmq.LitePushConsumer
	lock  sync.Mutex
	calls map[string]int
	seen  []call
}

func (listener *listener) consume(message *rmq.MessageView) rmq.ConsumerResult {
	body := string(message.GetBody())
	place, calls := listener.begin(body, message)
	time.Sleep(time.Duration(listener.plan.Seconds * float64(time.Second)))
	listener.lock.Lock()
	defer listener.lock.Unlock()
	listener.seen[place].EndedMs = time.Now().UnixMilli()
	if calls <= listener.plan.Failures || body == listener.plan.Poison {
		return rmq.FAILURE
	}
	return rmq.SUCCESS
}

func (listener *listener) begin(body string, message *rmq.MessageView) (place int, calls int) {
	listener.lock.Lock()
	defer listener.lock.Unlock()
	listener.calls[body]++
	listener.seen = append(listener.seen, call{
		Body:         body,
		Attempt:      message.GetDeliveryAttempt(),
		MessageGroup: textOf(message.GetMessageGroup()),
		LiteTopic:    message.GetLiteTopic(),
		BeganMs:      time.Now().UnixMilli(),
	})
	return len(listener.seen) - 1, listener.calls[body]
}

// soFar is a copy of every call so far.
func (listener *listener) soFar() []call {
	listener.lock.Lock()
	defer listener.lock.Unlock()
	return append([]call{}, listener.seen...)
}
