package main

import (
	"os"
	"sync"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const firstTopic = "first"

// client has one producer, and what it was told to start.
type client struct {
	endpoint  string
	producer  rmq.Producer
	consumers shelf[rmq.SimpleConsumer]
	listeners shelf[*listener]
	messages  shelf[*rmq.MessageView]
	lock      sync.Mutex
	halves    map[string]rmq.Transaction
	answers   map[string][]string
}

var resolutions = map[string]rmq.TransactionResolution{
	"commit":   rmq.COMMIT,
	"rollback": rmq.ROLLBACK,
	"unknown":  rmq.UNKNOWN,
}

func start(endpoint string) (*client, error) {
	client := &client{endpoint: endpoint, halves: map[string]rmq.Transaction{}, answers: map[string][]string{}}
	checker := &rmq.TransactionChecker{Check: client.check}
	producer, err := rmq.NewProducer(
		client.configuration(""),
		rmq.WithTransactionChecker(checker),
		rmq.WithTopics(firstTopic), // without any, Start waits for ever
	)
	if err != nil {
		return nil, err
	}
	client.producer = producer
	return client, producer.Start()
}

func (client *client) configuration(group string) *rmq.Config {
	return &rmq.Config{
		Endpoint:      client.endpoint,
		ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{
			AccessKey:    os.Getenv("TIDEWHEEL_CLIENT_ACCESS_KEY"),
			AccessSecret: os.Getenv("TIDEWHEEL_CLIENT_SECRET"),
		},
	}
}

// check answers as it was told to: one after the other, the last for ever.
func (client *client) check(half *rmq.MessageView) rmq.TransactionResolution {
	client.lock.Lock()
	defer client.lock.Unlock()
	name := string(half.GetBody())
	left := client.answers[name]
	if len(left) == 0 {
		return rmq.UNKNOWN
	}
	if len(left) > 1 {
		client.answers[name] = left[1:]
	}
	return resolutions[left[0]]
}

// shelf keeps things by number.
type shelf[T any] struct {
	lock   sync.Mutex
	things []T
}

func (shelf *shelf[T]) add(thing T) int {
	shelf.lock.Lock()
	defer shelf.lock.Unlock()
	shelf.things = append(shelf.things, thing)
	return len(shelf.things) - 1
}

func (shelf *shelf[T]) get(number int) T {
	shelf.lock.Lock()
	defer shelf.lock.Unlock()
	return shelf.things[number]
}
