package main

import (
	"context"
	"slices"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const liteLease = 30 * time.Second

// asked has the arguments of every verb; a verb reads its own.
type asked struct {
	Topic        string            `json:"topic"`
	Body         string            `json:"body"`
	Tag          *string           `json:"tag"`
	Keys         []string          `json:"keys"`
	MessageGroup *string           `json:"message_group"`
	LiteTopic    *string           `json:"lite_topic"`
	DeliverAtS   *int64            `json:"deliver_at_s"`
	Priority     *int32            `json:"priority"`
	Properties   map[string]string `json:"properties"`
	RecallHandle string            `json:"recall_handle"`
	Name         string            `json:"name"`
	How          any               `json:"how"`
	Group        string            `json:"group"`
	Filter       string            `json:"filter"`
	IsSQL        bool              `json:"is_sql"`
	AwaitSeconds int               `json:"await_seconds"`
	Plan         plan              `json:"plan"`
	Consumer     int               `json:"consumer"`
	Count        int32             `json:"count"`
	LeaseSeconds int               `json:"lease_seconds"`
	Native       int               `json:"native"`
	Handle       string            `json:"handle"`
	Seconds      int               `json:"seconds"`
}

type got struct {
	Native       int               `json:"native"`
	Handle       string            `json:"handle"`
	MessageID    string            `json:"message_id"`
	Body         string            `json:"body"`
	Attempt      int32             `json:"attempt"`
	Tag          string            `json:"tag"`
	Keys         []string          `json:"keys"`
	Properties   map[string]string `json:"properties"`
	MessageGroup string            `json:"message_group"`
}

var verbs = map[string]func(*client, asked) (any, error){
	"send":             (*client).send,
	"recall":           (*client).recall,
	"send_half":        (*client).sendHalf,
	"end_half":         (*client).endHalf,
	"answer_checks":    (*client).answerChecks,
	"simple":           (*client).simple,
	"push":             (*client).push,
	"lite_push":        (*client).litePush,
	"subscribe_lite":   (*client).subscribeLite,
	"unsubscribe_lite": (*client).unsubscribeLite,
	"receive":          (*client).receive,
	"ack":              (*client).ack,
	"change_invisible": (*client).changeInvisible,
	"seen":             (*client).seen,
	"close":            (*client).close,
}

// What is sent.

func (client *client) send(asked asked) (any, error) {
	message, err := messageOf(asked)
	if err != nil {
		return nil, err
	}
	receipts, err := client.producer.Send(context.Background(), message)
	if err != nil {
		return nil, err
	}
	return map[string]string{"message_id": receipts[0].MessageID, "recall_handle": receipts[0].RecallHandle}, nil
}

func messageOf(asked asked) (*rmq.Message, error) {
	message := &rmq.Message{Topic: asked.Topic, Body: []byte(asked.Body), Tag: asked.Tag}
	message.SetKeys(asked.Keys...)
	if asked.MessageGroup != nil {
		message.SetMessageGroup(*asked.MessageGroup)
	}
	if asked.LiteTopic != nil {
		message.SetLiteTopic(*asked.LiteTopic)
	}
	if asked.DeliverAtS != nil {
		message.SetDelayTimestamp(time.Unix(*asked.DeliverAtS, 0))
	}
	for name, value := range asked.Properties {
		message.AddProperty(name, value)
	}
	if asked.Priority != nil {
		return message, message.SetPriority(*asked.Priority)
	}
	return message, nil
}

func (client *client) recall(asked asked) (any, error) {
	return client.producer.Recall(context.Background(), asked.Topic, asked.RecallHandle)
}

func (client *client) sendHalf(asked asked) (any, error) {
	transaction := client.producer.BeginTransaction()
	message := &rmq.Message{Topic: asked.Topic, Body: []byte(asked.Name)}
	message.SetKeys(asked.Name)
	_, err := client.producer.SendWithTransaction(context.Background(), message, transaction)
	client.lock.Lock()
	defer client.lock.Unlock()
	client.halves[asked.Name] = transaction
	return nil, err
}

func (client *client) endHalf(asked asked) (any, error) {
	client.lock.Lock()
	transaction := client.halves[asked.Name]
	client.lock.Unlock()
	if asked.How == "commit" {
		return nil, transaction.Commit()
	}
	return nil, transaction.RollBack()
}

func (client *client) answerChecks(asked asked) (any, error) {
	answers := []string{}
	for _, how := range asked.How.([]any) {
		answers = append(answers, how.(string))
	}
	client.lock.Lock()
	defer client.lock.Unlock()
	client.answers[asked.Name] = answers
	return nil, nil
}

// What is received.

func (client *client) simple(asked asked) (any, error) {
	consumer, err := rmq.NewSimpleConsumer(
		client.configuration(asked.Group),
		rmq.WithSimpleAwaitDuration(time.Duration(asked.AwaitSeconds)*time.Second),
		rmq.WithSimpleSubscriptionExpressions(subscriptions(asked)),
	)
	if err != nil {
		return nil, err
	}
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	return client.consumers.add(consumer), nil
}

func (client *client) push(asked asked) (any, error) {
	listener := &listener{plan: asked.Plan, calls: map[string]int{}}
	consumer, err := rmq.NewPushConsumer(
		client.configuration(asked.Group),
		rmq.WithPushSubscriptionExpressions(subscriptions(asked)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listener.consume}),
	)
	if err != nil {
		return nil, err
	}
	return client.listeners.add(listener), consumer.Start()
}

func (client *client) litePush(asked asked) (any, error) {
	listener := &listener{plan: asked.Plan, calls: map[string]int{}}
	consumer, err := rmq.NewLitePushConsumer(
		client.configuration(asked.Group),
		rmq.NewLitePushConsumerConfig(asked.Topic, liteLease),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listener.consume}),
	)
	if err != nil {
		return nil, err
	}
	listener.lite = consumer
	return client.listeners.add(listener), consumer.Start()
}

func (client *client) subscribeLite(asked asked) (any, error) {
	return nil, client.listeners.get(asked.Consumer).lite.SubscribeLite(*asked.LiteTopic)
}

func (client *client) unsubscribeLite(asked asked) (any, error) {
	return nil, client.listeners.get(asked.Consumer).lite.UnSubscribeLite(*asked.LiteTopic)
}

func subscriptions(asked asked) map[string]*rmq.FilterExpression {
	kind := rmq.TAG
	if asked.IsSQL {
		kind = rmq.SQL92
	}
	return map[string]*rmq.FilterExpression{asked.Topic: rmq.NewFilterExpressionWithType(asked.Filter, kind)}
}

// receive turns the error by which this library says that nothing came into no messages.
func (client *client) receive(asked asked) (any, error) {
	lease := time.Duration(asked.LeaseSeconds) * time.Second
	messages, err := client.consumers.get(asked.Consumer).Receive(context.Background(), asked.Count, lease)
	if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
		return []got{}, nil
	}
	received := []got{}
	for _, message := range messages {
		received = append(received, client.gotOf(message))
	}
	return received, err
}

func (client *client) gotOf(message *rmq.MessageView) got {
	properties := message.GetProperties()
	if properties == nil {
		properties = map[string]string{}
	}
	return got{
		Native:       client.messages.add(message),
		Handle:       message.GetReceiptHandle(),
		MessageID:    message.GetMessageId(),
		Body:         string(message.GetBody()),
		Attempt:      message.GetDeliveryAttempt(),
		Tag:          textOf(message.GetTag()),
		Keys:         sorted(message.GetKeys()),
		Properties:   properties,
		MessageGroup: textOf(message.GetMessageGroup()),
	}
}

func (client *client) ack(asked asked) (any, error) {
	return nil, client.consumers.get(asked.Consumer).Ack(context.Background(), client.leased(asked))
}

func (client *client) changeInvisible(asked asked) (any, error) {
	message := client.leased(asked)
	duration := time.Duration(asked.Seconds) * time.Second
	err := client.consumers.get(asked.Consumer).ChangeInvisibleDuration(message, duration)
	return message.GetReceiptHandle(), err
}

// leased is the message that is meant, with the handle that is meant: a scenario may use one that is void.
func (client *client) leased(asked asked) *rmq.MessageView {
	message := client.messages.get(asked.Native)
	message.ReceiptHandle = asked.Handle
	return message
}

func (client *client) seen(asked asked) (any, error) {
	return client.listeners.get(asked.Consumer).soFar(), nil
}

func (client *client) close(asked asked) (any, error) {
	return nil, client.consumers.get(asked.Consumer).GracefulStop()
}

func sorted(texts []string) []string {
	copied := append([]string{}, texts...)
	slices.Sort(copied)
	return copied
}

func textOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
