// Apache RocketMQ's Go client, told over stdin what to do, a JSON line each:
//
//	{"id": 7, "verb": "receive", "arguments": {...}}   ->   {"id": 7, "told": ...} or {"id": 7, "refused": "..."}
//
// Answers come when they are there, in any order, so a receive may wait while a send goes on. The verbs are those
// of tests/clients/official.py.
package main

import (
	"bufio"
	"encoding/json"
	"io"
	"log"
	"os"
	"sync"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

type command struct {
	ID        int    `json:"id"`
	Verb      string `json:"verb"`
	Arguments asked  `json:"arguments"`
}

// teller writes answers, one at a time.
type teller struct {
	lock  sync.Mutex
	lines *json.Encoder
}

func (teller *teller) tell(id int, how string, what any) {
	teller.lock.Lock()
	defer teller.lock.Unlock()
	if err := teller.lines.Encode(map[string]any{"id": id, how: what}); err != nil {
		log.Fatal(err)
	}
}

func (teller *teller) answer(client *client, command command) {
	told, err := verbs[command.Verb](client, command.Arguments)
	if err != nil {
		teller.tell(command.ID, "refused", err.Error())
	} else {
		teller.tell(command.ID, "told", told)
	}
}

// main plays until stdin ends. Push consumers are not shut down: they end with the process.
func main() {
	if os.Getenv("TIDEWHEEL_CLIENT_PLAINTEXT") == "1" {
		rmq.EnableSsl = false
	}
	client, err := start(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	teller := &teller{lines: json.NewEncoder(os.Stdout)}
	teller.tell(0, "told", "started")
	commands := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var command command
		if err := commands.Decode(&command); err == io.EOF {
			break
		} else if err != nil {
			log.Fatal(err)
		}
		go teller.answer(client, command)
	}
	if err := client.producer.GracefulStop(); err != nil {
		log.Fatal(err)
	}
}
