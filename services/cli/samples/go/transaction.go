// Sends two messages that agree with a database: a commit, and a check-back for a commit that never came.
//
//	tidewheel sample go --use transaction > sample.go
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
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	topic = "sample-go-transaction"
	group = "sample-go-transaction"
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
	var paid sync.Map // stands for the table of your database
	// The broker asks about a half that stays open: the database knows.
	checker := &rmq.TransactionChecker{Check: func(half *rmq.MessageView) rmq.TransactionResolution {
		fmt.Println("asked about", half.GetMessageId())
		if _, isPaid := paid.Load(string(half.GetBody())); isPaid {
			return rmq.COMMIT
		}
		return rmq.UNKNOWN // the database may still commit: the broker asks again
	}}
	producer, err := rmq.NewProducer(configuration, rmq.WithTopics(topic), rmq.WithTransactionChecker(checker))
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

	// begin sends a half, which no consumer sees before its commit.
	begin := func(order string) (rmq.Transaction, string) {
		transaction := producer.BeginTransaction()
		half := &rmq.Message{Topic: topic, Body: []byte(order)}
		receipts, err := producer.SendWithTransaction(context.Background(), half, transaction)
		check(err)
		fmt.Println("sent", receipts[0].MessageID)
		return transaction, receipts[0].MessageID
	}
	transaction, first := begin("order 7 is paid")
	paid.Store("order 7 is paid", true) // the database commits
	check(transaction.Commit())

	_, second := begin("order 8 is paid")
	// The database commits, and then the process dies: the broker asks after 6 s.
	paid.Store("order 8 is paid", true)

	for received := map[string]bool{}; !received[first] || !received[second]; {
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
