// Calls a function for each message: a push consumer.
//
//	tidewheel sample go --use push > sample.go
//	go mod init sample
//	go get github.com/apache/rocketmq-clients/golang/v5@v5.1.4
//	go run sample.go
//
// Its end takes up to half a minute: this client waits for its open long poll.
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// With TLS it takes any certificate.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	topic = "sample-go-push"
	group = "sample-go-push"
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
	received := make(chan string, 1)
	// FAILURE has the message come again.
	consume := func(one *rmq.MessageView) rmq.ConsumerResult {
		fmt.Println("received", one.GetMessageId(), string(one.GetBody()))
		select {
		case received <- one.GetMessageId():
		default:
		}
		return rmq.SUCCESS // acknowledges it
	}
	consumer, err := rmq.NewPushConsumer(
		configuration,
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}),
	)
	check(err)
	check(consumer.Start())
	defer consumer.GracefulStop()
	producer, err := rmq.NewProducer(configuration, rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	defer producer.GracefulStop()

	receipts, err := producer.Send(context.Background(), &rmq.Message{Topic: topic, Body: []byte("hello from Go")})
	check(err)
	fmt.Println("sent", receipts[0].MessageID)

	<-received // a service waits for its own end here
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
