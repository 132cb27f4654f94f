// The scenario of all clients: see ../README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"google.golang.org/grpc"

	managerv1 "retinue.example/client/gen/retinue/manager/v1"
	typesv1 "retinue.example/client/gen/retinue/types/v1"
)

type client struct {
	sessions managerv1.SessionServiceClient
	kernels  managerv1.KernelServiceClient
	accounts managerv1.AccountServiceClient
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	connection, err := connect(os.Getenv("RETINUE_TOKEN"))
	check(err)
	defer connection.Close()
	c := client{managerv1.NewSessionServiceClient(connection), managerv1.NewKernelServiceClient(connection),
		managerv1.NewAccountServiceClient(connection)}

	caller, err := c.accounts.GetCaller(ctx, &managerv1.GetCallerRequest{})
	check(err)
	fmt.Println("caller:", caller.User.Name)

	c.refusals(ctx)
	created := c.create(ctx)
	id := created.Session.Id
	c.watchUntilRunning(ctx, created)
	c.readLogs(ctx, id)
	c.attach(ctx, id)
	c.runCode(ctx, id)
	c.openPort(ctx, id)
	c.end(ctx, created)
	fmt.Println("scenario: ok")
}

// refusals shows what an error carries: a code, a reason, the wrong fields, the id of the request.
func (c client) refusals(ctx context.Context) {
	var trailer metadata.MD
	_, err := c.sessions.CreateSession(ctx, &managerv1.CreateSessionRequest{Spec: &managerv1.SessionSpec{
		Name: "Not A Name", Type: managerv1.SessionType_SESSION_TYPE_BATCH, ClusterSize: -1,
	}}, grpc.Trailer(&trailer))
	expect(status.Code(err) == codes.InvalidArgument && reason(err) == "INVALID_FIELD", "a wrong request", err)
	expect(len(trailer.Get("x-request-id")) == 1, "a request id in the trailers", trailer)
	fields, _ := detail[*errdetails.BadRequest](err)
	names := map[string]bool{}
	for _, violation := range fields.GetFieldViolations() {
		names[violation.Field] = true
		fmt.Printf("refused: %s %s\n", violation.Field, violation.Description)
	}
	expect(names["spec.name"] && names["spec.cluster_size"], "both wrong fields", names)

	_, err = c.sessions.GetSession(ctx, &managerv1.GetSessionRequest{Session: "no-such-session"})
	expect(status.Code(err) == codes.NotFound && reason(err) == "NOT_FOUND", "an unknown session", err)

	stranger, err := connect("rtn_wrong")
	check(err)
	defer stranger.Close()
	_, err = managerv1.NewAccountServiceClient(stranger).GetCaller(ctx, &managerv1.GetCallerRequest{})
	expect(status.Code(err) == codes.Unauthenticated && reason(err) == "TOKEN_INVALID", "a wrong token", err)
}

// create asks for three kernels on two nodes, twice with one request id, which makes one session.
func (c client) create(ctx context.Context) *managerv1.CreateSessionResponse {
	request := &managerv1.CreateSessionRequest{RequestId: uuid.NewString(), Spec: &managerv1.SessionSpec{
		Name: "clients-go", Type: managerv1.SessionType_SESSION_TYPE_INTERACTIVE,
		ClusterSize: 3, ClusterMode: managerv1.ClusterMode_CLUSTER_MODE_MULTI_NODE,
		Kernel: &managerv1.KernelSpec{Slots: map[string]string{"cpu": "2", "mem": "200m"}},
		Roles: []*managerv1.RoleSpec{{Role: "main", Kernel: &managerv1.KernelSpec{Command: []string{"sh", "-c",
			"echo hello from $BACKENDAI_CLUSTER_HOST; exec python3 -m http.server 8000 --bind 127.0.0.1"}}}},
		ServicePorts: []*typesv1.ServicePort{{Name: "web", Protocol: "http", Ports: []int32{8000}}},
	}}
	created, err := c.sessions.CreateSession(ctx, request)
	check(err)
	again, err := c.sessions.CreateSession(ctx, request)
	check(err)
	expect(again.Session.Id == created.Session.Id, "one session for one request id", again.Session.Id)
	fmt.Println("created:", created.Session.Id)
	return created
}

// watch calls seen for every change of a session, from its creation on,
// until seen returns true or the session has ended.
func (c client) watch(ctx context.Context, created *managerv1.CreateSessionResponse, seen func(*managerv1.SessionEvent) bool) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	after := &managerv1.JournalPosition{Revision: created.Position.Revision - 1, Incarnation: created.Position.Incarnation}
	stream, err := c.sessions.WatchSessions(ctx, &managerv1.WatchSessionsRequest{
		SessionId: created.Session.Id, After: after, UntilEnded: true})
	check(err)
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		check(err)
		for _, event := range response.Events {
			if seen(event) {
				return
			}
		}
	}
}

func (c client) watchUntilRunning(ctx context.Context, created *managerv1.CreateSessionResponse) {
	running := false
	c.watch(ctx, created, func(event *managerv1.SessionEvent) bool {
		moved := event.GetSessionMoved()
		running = moved.GetToState() == managerv1.SessionState_SESSION_STATE_RUNNING
		if moved != nil {
			fmt.Println("session:", moved.ToState)
		}
		return running
	})
	expect(running, "a running session", created.Session.Id)
	got, err := c.sessions.GetSession(ctx, &managerv1.GetSessionRequest{Session: created.Session.Id})
	check(err)
	agents := map[string]bool{}
	for _, kernel := range got.Session.Kernels {
		agents[kernel.Agent] = true
	}
	expect(len(got.Session.Kernels) == 3 && len(agents) == 2, "three kernels on two nodes", got.Session.Kernels)
}

func (c client) readLogs(ctx context.Context, id string) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	stream, err := c.kernels.StreamLogs(ctx, &managerv1.StreamLogsRequest{Session: id, Follow: true})
	check(err)
	text := ""
	for !strings.Contains(text, "hello from main1\n") {
		piece, err := stream.Recv()
		check(err)
		text += string(piece.Data)
	}
	fmt.Printf("logs: %q\n", text)
}

// attach runs a command in main1 that reads its input and reaches another kernel.
func (c client) attach(ctx context.Context, id string) {
	stream, err := c.kernels.Attach(ctx)
	check(err)
	for _, request := range []*managerv1.AttachRequest{
		{Step: &managerv1.AttachRequest_Start{Start: &managerv1.AttachStart{Session: id, Spec: &typesv1.CommandSpec{
			Command: []string{"sh", "-c", "read line; echo got $line; ssh sub2 hostname; exit 7"}}}}},
		{Step: &managerv1.AttachRequest_Input{Input: &typesv1.CommandInput{
			Step: &typesv1.CommandInput_Stdin{Stdin: []byte("a line\n")}}}},
	} {
		check(stream.Send(request))
	}
	check(stream.CloseSend())
	output, exitCode := "", int32(-1)
	for response, err := stream.Recv(); !errors.Is(err, io.EOF); response, err = stream.Recv() {
		check(err)
		output += string(response.GetOutput().GetStdout())
		if exited := response.GetOutput().GetExited(); exited != nil {
			exitCode = exited.ExitCode
		}
	}
	expect(output == "got a line\nsub2\n" && exitCode == 7, "output and exit code of the command", output)
	fmt.Printf("attach: %q, exit code %d\n", output, exitCode)
}

func (c client) runCode(ctx context.Context, id string) {
	stream, err := c.kernels.ExecuteCode(ctx)
	check(err)
	check(stream.Send(&managerv1.ExecuteCodeRequest{Step: &managerv1.ExecuteCodeRequest_Open{Open: &managerv1.CodeOpen{Session: id}}}))
	for _, source := range []string{"print(sum(range(10)))", "1/0", "6 * 7"} {
		run := &typesv1.CodeRun{Program: &typesv1.CodeRun_Code{Code: source}}
		input := &typesv1.CodeInput{Step: &typesv1.CodeInput_Run{Run: run}}
		check(stream.Send(&managerv1.ExecuteCodeRequest{Step: &managerv1.ExecuteCodeRequest_Input{Input: input}}))
	}
	check(stream.CloseSend())
	var seen []string
	for response, err := stream.Recv(); !errors.Is(err, io.EOF); response, err = stream.Recv() {
		check(err)
		for _, event := range response.GetOutput().GetEvents().GetEvents() {
			switch event := event.Event.(type) {
			case *typesv1.CodeEvent_Stdout:
				seen = append(seen, strings.TrimSpace(event.Stdout))
			case *typesv1.CodeEvent_Media:
				seen = append(seen, string(event.Media.Forms[0].Data))
			case *typesv1.CodeEvent_Finished:
				seen = append(seen, strings.TrimPrefix(event.Finished.Status.String(), "CODE_STATUS_"))
			}
		}
	}
	expect(strings.Join(seen, " ") == "45 OK ERROR 42 OK", "what the code printed and returned", seen)
	fmt.Println("code:", seen)
}

// openPort speaks HTTP to a service port of the session; its program may need a moment until it listens.
func (c client) openPort(ctx context.Context, id string) {
	page, err := c.get(ctx, id, "web")
	for reason(err) == "PORT_CLOSED" && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		page, err = c.get(ctx, id, "web")
	}
	check(err)
	expect(strings.HasPrefix(page, "HTTP/1.0 200 OK"), "a page", page)
	fmt.Println("port:", strings.SplitN(page, "\r\n", 2)[0])
	_, err = c.get(ctx, id, "nothing")
	expect(status.Code(err) == codes.NotFound && reason(err) == "NOT_FOUND", "an unknown port", err)
}

func (c client) get(ctx context.Context, id, port string) (string, error) {
	stream, err := c.kernels.OpenPort(ctx)
	if err != nil {
		return "", err
	}
	// An error of the stream comes with the answer.
	_ = stream.Send(&managerv1.OpenPortRequest{Step: &managerv1.OpenPortRequest_Start{Start: &managerv1.OpenPortStart{Session: id, Port: port}}})
	_ = stream.Send(&managerv1.OpenPortRequest{Step: &managerv1.OpenPortRequest_Data{Data: []byte("GET / HTTP/1.0\r\n\r\n")}})
	_ = stream.CloseSend()
	page := ""
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return page, nil
		}
		if err != nil {
			return "", err
		}
		page += string(response.GetData())
	}
}

func (c client) end(ctx context.Context, created *managerv1.CreateSessionResponse) {
	_, err := c.sessions.TerminateSession(ctx, &managerv1.TerminateSessionRequest{Session: created.Session.Id})
	check(err)
	var last managerv1.SessionState
	c.watch(ctx, created, func(event *managerv1.SessionEvent) bool {
		if moved := event.GetSessionMoved(); moved != nil {
			last = moved.ToState
		}
		return false
	})
	expect(last == managerv1.SessionState_SESSION_STATE_TERMINATED, "a terminated session", last)
	fmt.Println("session:", last)
}

func check(err error) {
	if err != nil {
		log.Fatalf("%v %s", err, reason(err))
	}
}

func expect(holds bool, what string, found any) {
	if !holds {
		log.Fatalf("expected %s, found %v", what, found)
	}
}
