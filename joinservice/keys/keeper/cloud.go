package keeper

import (
	"context"
	"errors"
	"net/url"

	"github.com/aws/smithy-go"
	"gocloud.dev/gcerrors"
	"gocloud.dev/gcp"
	"gocloud.dev/secrets/awskms"
	"gocloud.dev/secrets/azurekeyvault"
	"gocloud.dev/secrets/gcpkms"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
)

// openAWS opens the driver's URLs: awskms:///KEY?region=…
func openAWS(ctx context.Context, u *url.URL) (keys.Keeper, error) {
	if endpoint := u.Query().Get("endpoint"); endpoint != "" {
		if err := checkAddress(endpoint); err != nil {
			return nil, err
		}
	}
	opened, err := new(awskms.URLOpener).OpenKeeperURL(ctx, u)
	if err != nil {
		return nil, keys.Unusable("a URL or environment that AWS's client cannot use")
	}
	return driver{Keeper: opened, explain: explainCloud}, nil
}

// openGoogle opens the driver's URLs: gcpkms://projects/…/cryptoKeys/KEY. The
// driver's own opener would keep the first failure, and the first context, for good.
func openGoogle(ctx context.Context, u *url.URL) (keys.Keeper, error) {
	ctx = context.WithoutCancel(ctx)
	credentials, err := gcp.DefaultCredentials(ctx)
	if err != nil {
		return nil, keys.Unreachable("no identity: neither a file nor the metadata service gives one")
	}
	client, hangUp, err := gcpkms.Dial(ctx, credentials.TokenSource)
	if err != nil {
		return nil, keys.Unusable("an environment that Google's client cannot use")
	}
	opened, err := (&gcpkms.URLOpener{Client: client}).OpenKeeperURL(ctx, u)
	if err != nil {
		hangUp()
		return nil, keys.Unusable("a URL that is not gcpkms://projects/PROJECT/locations/PLACE/keyRings/RING/cryptoKeys/KEY")
	}
	return driver{Keeper: opened, explain: explainCloud, close: hangUp}, nil
}

// openAzure opens the driver's URLs: azurekeyvault://NAME.vault.azure.net/keys/KEY/VERSION
func openAzure(ctx context.Context, u *url.URL) (keys.Keeper, error) {
	opened, err := (&azurekeyvault.URLOpener{ClientMaker: azurekeyvault.DefaultClientMaker}).OpenKeeperURL(ctx, u)
	if err != nil {
		return nil, keys.Unusable("a URL that is not azurekeyvault://NAME.vault.azure.net/keys/KEY/VERSION, or no identity")
	}
	return driver{Keeper: opened, explain: explainCloud}, nil
}

// explainCloud sorts an error by what can be done about it. Codes are matched, never printed as the server wrote them.
func explainCloud(err error) *hullmark.Condition {
	switch code := gcerrors.Code(err); code {
	case gcerrors.PermissionDenied, gcerrors.NotFound, gcerrors.InvalidArgument, gcerrors.FailedPrecondition, gcerrors.Unimplemented:
		return keys.Refused(code.String())
	}
	var amazon smithy.APIError
	if errors.As(err, &amazon) {
		switch code := amazon.ErrorCode(); code { // Those that the driver does not sort.
		case "AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException",
			"MissingAuthenticationTokenException", "IncorrectKeyException", "ValidationException":
			return keys.Refused(code)
		}
		return keys.Unreachable("an error of the service")
	}
	if status.Code(err) == codes.Unauthenticated {
		return keys.Refused(codes.Unauthenticated.String())
	}
	return explainNetwork(err)
}
