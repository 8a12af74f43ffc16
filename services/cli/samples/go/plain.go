// Sends a message, receives it and acknowledges it.
//
//	tidewheel sample go --use plain > sample.go
//	go mod init sample
//	go get github.com/apache/rocketmq-clients/golang/v5@v5.1.4
//	go run sample.go
//
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// With TLS it takes any certificate.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	topic = "sample-go-plain"
	group = "sample-go-plain"
	tls   = true
)

func main() {
	rmq.EnableSsl = tls
	configuration := &rmq.Config{
		Endpoint:      "127.0.0.1:8081",
		ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{
			AccessKey:    os.Getenv("TIDEWHEEL_ACCESS_KEY"),
			AccessSecret: os.Getenv("TIDEWHEEL_SECRET_KEY"),
		},
	}
	producer, err := rmq.NewProducer(configuration, rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	defer producer.GracefulStop()
	consumer, err := rmq.NewSimpleConsumer(
		configuration,
		rmq.WithSimpleAwaitDuration(10*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
	)
	check(err)
	check(consumer.Start())
	defer consumer.GracefulStop()

	message := &rmq.Message{Topic: topic, Body: []byte("hello from Go")}
	message.SetKeys("order-7")
	receipts, err := producer.Send(context.Background(), message)
	check(err)
	sent := receipts[0].MessageID
	fmt.Println("sent", sent)

	for received := map[string]bool{}; !received[sent]; {
		// Up to 32 messages, leased for 15 s. That nothing came is an error here.
		messages, err := consumer.Receive(context.Background(), 32, 15*time.Second)
		if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
			continue
		}
		check(err)
		for _, one := range messages {
			fmt.Println("received", one.GetMessageId(), string(one.GetBody()))
			check(consumer.Ack(context.Background(), one))
			received[one.GetMessageId()] = true
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
