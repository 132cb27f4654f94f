// Creates a batch session and follows it to its end.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	managerv1 "retinue/manager/v1"
)

func main() {
	authority, err := os.ReadFile(os.Getenv("RETINUE_CA"))
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	security := credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "manager.retinue"})
	connection, err := grpc.NewClient(os.Getenv("RETINUE_ENDPOINT"), grpc.WithTransportCredentials(security))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	sessions := managerv1.NewSessionServiceClient(connection)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+os.Getenv("RETINUE_TOKEN"))

	created, err := sessions.CreateSession(ctx, &managerv1.CreateSessionRequest{Spec: &managerv1.SessionSpec{
		Type:   managerv1.SessionType_SESSION_TYPE_BATCH,
		Kernel: &managerv1.KernelSpec{Command: []string{"echo", "hello"}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	watch, err := sessions.WatchSessions(ctx, &managerv1.WatchSessionsRequest{
		SessionId: created.Session.Id, AfterRevision: &created.Revision, Incarnation: created.Incarnation, UntilEnded: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	for response, err := watch.Recv(); err == nil; response, err = watch.Recv() {
		for _, event := range response.Events {
			if move := event.GetSessionMoved(); move != nil {
				fmt.Println(move.ToState, move.Result)
			}
		}
	}
}
