package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// bearer adds the caller's token to every call.
type bearer string

func (token bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(token)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

// connect opens a connection to the manager that the environment names, with the published retry policy.
func connect(token string) (*grpc.ClientConn, error) {
	pem, err := os.ReadFile(os.Getenv("RETINUE_CA"))
	if err != nil {
		return nil, err
	}
	serviceConfig, err := os.ReadFile(os.Getenv("RETINUE_SERVICE_CONFIG"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", os.Getenv("RETINUE_CA"))
	}
	// Every manager's certificate carries this name, whatever address is dialled.
	security := credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "manager.retinue"})
	return grpc.NewClient(os.Getenv("RETINUE_ENDPOINT"),
		grpc.WithTransportCredentials(security),
		grpc.WithPerRPCCredentials(bearer(token)),
		grpc.WithDefaultServiceConfig(string(serviceConfig)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}))
}

// detail returns the first detail of an error that has type T.
func detail[T any](err error) (found T, ok bool) {
	for _, each := range status.Convert(err).Details() {
		if found, ok = each.(T); ok {
			return found, true
		}
	}
	return found, false
}

// reason returns the word by which programs tell errors apart, such as INVALID_FIELD;
// docs/reference/errors.md lists them.
func reason(err error) string {
	info, _ := detail[*errdetails.ErrorInfo](err)
	return info.GetReason()
}
