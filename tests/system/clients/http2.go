// Gets URLs over HTTP/2 with Go's net/http, all at once, and prints for each: protocol, status, SHA-256 of the body, URL.
package main

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
)

func main() {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	client := http.Client{Transport: &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	var all sync.WaitGroup
	for _, url := range os.Args[1:] {
		all.Go(func() {
			reply, err := client.Get(url)
			if err != nil {
				fmt.Println(err)
				return
			}
			body, err := io.ReadAll(reply.Body)
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Printf("%s %d %x %s\n", reply.Proto, reply.StatusCode, sha256.Sum256(body), url)
		})
	}
	all.Wait()
}
